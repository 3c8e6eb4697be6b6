/* Weights of search results; pages for developers come after those for users. */

"use strict";

const DEVELOPERS = /^(design\/|contributing$|experiments$|changelog$)/;

var Scorer = {
  score: ([docname, , , , score]) => (DEVELOPERS.test(docname) ? score / 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
