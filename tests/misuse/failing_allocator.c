/* Replaces functions that allocate, for LD_PRELOAD: fails some allocations.

Allocations of this package's native code count, and those of arrays by MXNet's library. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { MOST = 64 };
static struct range { uintptr_t first, last; int is_package; } ranges[MOST];
static int ranges_count;
static atomic_long count, failing = -1, until;

static int add(struct dl_phdr_info *info, size_t size, void *context)
{
    int is_package = strstr(info->dlpi_name, "gluon_dynbatch/native") != NULL;
    (void)size, (void)context;
    if (!is_package && !strstr(info->dlpi_name, "libmxnet"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && ranges_count < MOST; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t first = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && part->p_flags & PF_X)
            ranges[ranges_count++] = (struct range){first, first + part->p_memsz, is_package};
    }
    return 0;
}

/* Count from now on, and fail the allocations from number `first` to before `last`. */
void fail_allocations(long first, long last)
{
    if (!ranges_count)
        dl_iterate_phdr(add, NULL);
    count = 0;
    until = last;
    failing = first;
}

/* Stop counting; returns how many there were. */
long count_allocations(void)
{
    failing = -1;
    return count;
}

static int fails(void *caller, int is_array)
{
    if (failing < 0)
        return 0;
    for (int i = 0; i < ranges_count; i++)
        if ((uintptr_t)caller >= ranges[i].first && (uintptr_t)caller < ranges[i].last) {
            if (!ranges[i].is_package && !is_array)
                return 0;
            long number = count++;
            return number >= failing && number < until;
        }
    return 0;
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t size)
{
    return fails(__builtin_return_address(0), 0) ? NULL : __libc_malloc(size);
}

void *calloc(size_t items, size_t size)
{
    return fails(__builtin_return_address(0), 0) ? NULL : __libc_calloc(items, size);
}

void *realloc(void *memory, size_t size)
{
    return fails(__builtin_return_address(0), 0) ? NULL : __libc_realloc(memory, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    /* Pages are for objects of MXNet's engine, which ends the process without them. */
    if (size != alignment && fails(__builtin_return_address(0), 1))
        return ENOMEM;
    *memory = __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}
