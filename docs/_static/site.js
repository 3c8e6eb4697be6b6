/* Puts a box above each long table that shows only the rows with the words typed into it. */

"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    if (rows.length < 50) continue;
    const box = document.createElement("input");
    box.className = "filter";
    box.type = "search";
    box.placeholder = `Search ${rows.length} rows`;
    box.setAttribute("aria-label", box.placeholder);
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    const wrapper = table.closest(".table-wrapper") || table;
    wrapper.parentNode.insertBefore(box, wrapper);
  }
});
