#ifdef __linux__
#define _GNU_SOURCE
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "team.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINE = 64,
    STACK_BYTES = 1 << 20,
    CLOSED = INT32_MAX, /* the next task between two phases: beyond any */
    PAUSES = 8,
    /* Nanoseconds. */
    SPIN = 200000,           /* that a member looks for tasks before it sleeps, */
    SPIN_BRIEFLY = 20000,    /* and one on the processor of the thread that records, who may go on */
    LOOK = 20000,            /* between looks at what processors do */
    YIELD = 10000,           /* of waiting before the owner offers its own processor */
    LATE = 40000,            /* of waiting for a task before the owner looks at the member's clock, */
    WATCHED = 20000          /* and how long it does so: whether the member has lost its processor */
};

#define LOAD(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
#define PEEK(place) __atomic_load_n(place, __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n(place, value, __ATOMIC_RELEASE)
#define SET(place, value) __atomic_store_n(place, value, __ATOMIC_RELAXED)
#define ALIGNED __attribute__((aligned(LINE)))

/* A thread of the team. Owned by the process: it does not end, and a child of a fork forgets it. The
 * memory is its own. */
typedef struct {
    ALIGNED int number;
    int processor;          /* to which it is bound, or GDB_ANYWHERE; set by owners */
    int working;            /* whether it has taken a task */
    int thread;             /* as Linux numbers it; 0 if it cannot be moved */
    clockid_t clock;        /* of the time that it uses; valid if it can be moved */
    int64_t used;           /* of owners: the time that it had used when it was late */
    int is_away;            /* whether an owner has moved it to its own processor, to end a task */
    pthread_mutex_t lock;
    pthread_cond_t woken;
    int is_called; /* guarded by the lock */
    /* Its own. */
    int bound_to;
    char *memory; /* scratch begins at its first line */
    int64_t bytes;
} member;

/* Owned by the process, and at any time by at most one thread that runs a program, which alone
 * changes what is not atomic. The context of a phase is that thread's, until all tasks are done. */
static struct {
    /* The phase in the upper half, the next task in the lower. */
    ALIGNED uint64_t ticket;
    ALIGNED int64_t done; /* tasks of the phase */
    /* The phase; changed only while the ticket is closed. */
    ALIGNED gdb_task *task;
    void *context;
    int64_t count, scratch_bytes;
    uint64_t helpers;          /* members who may take tasks, a bit each */
    int recorder_at;           /* the processor of the thread that records, or GDB_ANYWHERE */
    ALIGNED uint64_t sleeping; /* members */
    ALIGNED int is_owned;
    int count_of_members;
    member members[GDB_MOST_THREADS];
#ifdef __linux__
    cpu_set_t processors; /* that the process may use, as last seen */
#endif
} team;

static int most_threads = 1, assumed_processors;

static inline void pause_once(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Leave the core to a thread that shares it with this one, for less than a microsecond. */
static inline void pause_briefly(void) {
    for (int i = 0; i < PAUSES; i++) pause_once();
}

/* ------------------------------------------------------------------ tasks */

/* Take a task of the current phase and do it; return 0 if there is none, or if it needs more
 * scratch. A ticket that is still the same has not been closed since it was read, so the phase read
 * meanwhile belongs to it. */
static int do_one(char *scratch, int64_t bytes) {
    uint64_t ticket = LOAD(&team.ticket);
    for (;;) {
        gdb_task *task = PEEK(&team.task);
        void *context = PEEK(&team.context);
        const int64_t number = (int64_t)(uint32_t)ticket;
        if (number >= PEEK(&team.count) || bytes < PEEK(&team.scratch_bytes)) return 0;
        if (__atomic_compare_exchange_n(&team.ticket, &ticket, ticket + 1, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            task(context, number, scratch);
            __atomic_add_fetch(&team.done, 1, __ATOMIC_RELEASE);
            return 1;
        }
    }
}

/* Return whether there are tasks for some of these members. */
static int have_tasks(uint64_t members) {
    const uint64_t ticket = LOAD(&team.ticket);
    return (members & PEEK(&team.helpers)) && (int64_t)(uint32_t)ticket < PEEK(&team.count);
}

/* Wake up to two of the members who sleep although they may take tasks; these wake others. */
static void wake_some(void) {
    for (int woken = 0; woken < 2; woken++) {
        const uint64_t wanted = __atomic_load_n(&team.sleeping, __ATOMIC_SEQ_CST)
            & PEEK(&team.helpers);
        if (!wanted) return;
        member *other = &team.members[__builtin_ctzll(wanted)];
        pthread_mutex_lock(&other->lock);
        other->is_called = 1;
        __atomic_and_fetch(&team.sleeping, ~(1ULL << other->number), __ATOMIC_SEQ_CST);
        pthread_cond_signal(&other->woken);
        pthread_mutex_unlock(&other->lock);
    }
}

/* ------------------------------------------------------------------ members */

/* Do a task, if there is one and memory for its scratch. */
static int help(member *self) {
    const int64_t bytes = PEEK(&team.scratch_bytes);
    if (!have_tasks(1ULL << self->number)) return 0;
    if (bytes > self->bytes) {
        free(self->memory);
        self->memory = malloc(bytes + LINE);
        self->bytes = self->memory ? bytes : -1;
    }
    const uintptr_t scratch = ((uintptr_t)self->memory + LINE - 1) & ~(uintptr_t)(LINE - 1);
    SET(&self->working, 1);
    const int has_worked = do_one((char *)scratch, self->bytes);
    SET(&self->working, 0);
    return has_worked;
}

static void sleep_until_called(member *self) {
    const uint64_t bit = 1ULL << self->number;
    pthread_mutex_lock(&self->lock);
    self->is_called = 0;
    __atomic_or_fetch(&team.sleeping, bit, __ATOMIC_SEQ_CST);
    if (have_tasks(bit)) { /* published before the owner could see that this one sleeps */
        self->is_called = 1;
        __atomic_and_fetch(&team.sleeping, ~bit, __ATOMIC_SEQ_CST);
    }
    while (!self->is_called) pthread_cond_wait(&self->woken, &self->lock);
    pthread_mutex_unlock(&self->lock);
}

/* Bind the thread to its processor, or let it run wherever the process may. */
static void go_to_processor(member *self) {
#ifdef __linux__
    cpu_set_t processors;
    self->bound_to = PEEK(&self->processor);
    CPU_ZERO(&processors);
    if (self->bound_to != GDB_ANYWHERE)
        CPU_SET(self->bound_to, &processors);
    else if (sched_getaffinity(getpid(), sizeof processors, &processors))
        return;
    sched_setaffinity(0, sizeof processors, &processors);
#else
    (void)self;
#endif
}

/* Return how long a member looks for tasks before it sleeps. */
static int64_t patience_of(const member *self) {
    const int is_beside = self->bound_to != GDB_ANYWHERE && self->bound_to == PEEK(&team.recorder_at);
    return is_beside ? SPIN_BRIEFLY : SPIN;
}

static void *run_member(void *argument) {
    member *self = argument;
    int64_t idle_since = gdb_now();
#ifdef __linux__
    if (!pthread_getcpuclockid(pthread_self(), &self->clock))
        STORE(&self->thread, (int)syscall(SYS_gettid));
#endif
    go_to_processor(self);
    for (;;) {
        if (PEEK(&self->is_away)) {
            SET(&self->is_away, 0);
            go_to_processor(self);
        }
        if (help(self)) {
            idle_since = gdb_now();
        } else if (!(PEEK(&team.helpers) & 1ULL << self->number)
                   || gdb_now() - idle_since > patience_of(self)) {
            sleep_until_called(self);
            if (self->bound_to != PEEK(&self->processor)) go_to_processor(self);
            if (have_tasks(~0ULL)) wake_some();
            idle_since = gdb_now();
        } else {
            pause_briefly();
        }
    }
    return NULL;
}

/* Forget the members, who do not exist in the child of a fork. */
static void forget_members(void) { memset(&team, 0, sizeof team); }

static void register_fork(void) { pthread_atfork(NULL, NULL, forget_members); }

/* Make members until there are so many, or no more can be made. Signals are left to the threads of
 * the program. */
static void make_members(int count) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_once(&once, register_fork);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (team.count_of_members < count) {
        member *new = &team.members[team.count_of_members];
        pthread_t thread;
        new->number = team.count_of_members;
        pthread_mutex_init(&new->lock, NULL);
        pthread_cond_init(&new->woken, NULL);
        if (pthread_create(&thread, &attributes, run_member, new)) break;
#ifdef __linux__
        pthread_setname_np(thread, GDB_MEMBER_NAME);
#endif
        team.count_of_members++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* ------------------------------------------------------------------ owners */

void gdb_use_threads(int count, int processors) {
    most_threads = count < 1 ? 1 : count > GDB_MOST_THREADS ? GDB_MOST_THREADS : count;
    assumed_processors = processors;
}

/* Say where members run. If a program may use all processors of the process, each has one member,
 * who pauses while the owner runs there: left to itself, the system may put both on one of two
 * processors for some milliseconds. */
static void place_members(int processors, int usable) {
    const int is_bound = processors == usable && !assumed_processors;
    int processor = GDB_ANYWHERE;
    make_members(is_bound ? processors : processors - 1);
    for (int i = 0; i < team.count_of_members; i++) {
#ifdef __linux__
        if (is_bound)
            do processor++;
            while (processor < CPU_SETSIZE - 1 && !CPU_ISSET(processor, &team.processors));
#endif
        SET(&team.members[i].processor, processor);
    }
}

/* Count the processors that a program may use now, and place the members. */
static int count_processors(void) {
    int usable = most_threads, processors = most_threads;
#ifdef __linux__
    cpu_set_t allowed;
    if (!sched_getaffinity(getpid(), sizeof allowed, &allowed)) {
        usable = CPU_COUNT(&allowed);
        team.processors = allowed;
    }
#endif
    if (assumed_processors) usable = assumed_processors;
    if (processors > usable) processors = usable;
    if (processors > 1) place_members(processors, usable);
    return processors;
}

/* Look who may take tasks: not the member on the owner's processor, nor the one on that of the thread
 * that records, while that is busy. */
static void look(gdb_crew *crew, int64_t time) {
    const int64_t used = gdb_time_used(&crew->recorder);
    const int is_busy = gdb_was_busy(&crew->recorder, used, time - crew->recorder.at);
    const int here = gdb_this_processor();
    int free = crew->processors - 1 - is_busy;
    crew->helpers = 0;
    for (int i = 0; i < team.count_of_members && free > 0; i++) {
        const member *m = &team.members[i];
        if (m->processor != GDB_ANYWHERE
            && (m->processor == here || (is_busy && m->processor == crew->recorder.processor)))
            continue;
        free--;
        crew->helpers |= 1ULL << i;
    }
    crew->recorder.at = time, crew->recorder.used = used;
}

gdb_crew gdb_join_team(char *scratch, int64_t scratch_bytes, gdb_recorder recorder) {
    gdb_crew crew = {.processors = 1, .scratch = scratch, .scratch_bytes = scratch_bytes,
                     .recorder = recorder};
    if (most_threads > 1 && !__atomic_exchange_n(&team.is_owned, 1, __ATOMIC_ACQUIRE)) {
        crew.has_team = 1;
        crew.processors = count_processors();
        /* Until the first look, the thread that records counts as busy. */
        if (recorder.used < 0) look(&crew, gdb_now());
    }
    return crew;
}

void gdb_leave_team(gdb_crew *crew) {
    if (!crew->has_team) return;
    SET(&team.helpers, 0);
    STORE(&team.is_owned, 0);
}

/* Note the time that members with a task have used so far. */
static void watch_members(void) {
    for (int i = 0; i < team.count_of_members; i++) {
        member *m = &team.members[i];
        m->used = PEEK(&m->working) && LOAD(&m->thread) ? gdb_read_clock(m->clock) : -1;
    }
}

/* Let members who have lost their processors, as they have hardly run for so long, end their tasks on
 * that of the owner. */
static void fetch_members(int64_t watched) {
#ifdef __linux__
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(gdb_this_processor(), &here);
    for (int i = 0; i < team.count_of_members; i++) {
        member *m = &team.members[i];
        if (m->used < 0 || !PEEK(&m->working)) continue;
        if (2 * (gdb_read_clock(m->clock) - m->used) > watched) continue;
        if (!sched_setaffinity(LOAD(&m->thread), sizeof here, &here)) STORE(&m->is_away, 1);
    }
#else
    (void)watched;
#endif
}

/* Wait for the tasks that members have taken. */
static void await_members(int64_t count) {
    int64_t started = 0, watched_at = 0;
    int has_fetched = 0;
    while (LOAD(&team.done) < count) {
        const int64_t time = gdb_now();
        if (!started) started = time;
        if (time - started > YIELD)
            sched_yield();
        else
            pause_briefly();
        if (!watched_at && time - started > LATE) {
            watch_members();
            watched_at = time;
        } else if (watched_at && !has_fetched && time - watched_at > WATCHED) {
            fetch_members(time - watched_at);
            has_fetched = 1;
        }
    }
}

int gdb_has_help(gdb_crew *crew) {
    const int64_t time = crew->processors > 1 ? gdb_now() : 0;
    if (time - crew->recorder.at > LOOK && time) look(crew, time);
    return crew->helpers || (assumed_processors && crew->processors > 1);
}

/* Look again, as it is time to, who may take tasks of the open phase. */
static void call_others(gdb_crew *crew) {
    const uint64_t before = crew->helpers;
    gdb_has_help(crew);
    if (crew->helpers == before) return;
    __atomic_exchange_n(&team.helpers, crew->helpers, __ATOMIC_SEQ_CST);
    wake_some();
}

void gdb_share(gdb_crew *crew, gdb_task *task, void *context, int64_t count) {
    if (count < 2 || crew->processors < 2) {
        for (int64_t number = 0; number < count; number++) task(context, number, crew->scratch);
        return;
    }
    gdb_has_help(crew);
    const uint64_t phase = (PEEK(&team.ticket) >> 32) + 1;
    __atomic_exchange_n(&team.ticket, phase << 32 | CLOSED, __ATOMIC_SEQ_CST);
    SET(&team.task, task);
    SET(&team.context, context);
    SET(&team.scratch_bytes, crew->scratch_bytes);
    SET(&team.count, count);
    SET(&team.helpers, crew->helpers);
    SET(&team.recorder_at, crew->recorder.processor);
    SET(&team.done, 0);
    __atomic_exchange_n(&team.ticket, (phase + 1) << 32, __ATOMIC_SEQ_CST);
    wake_some();
    while (do_one(crew->scratch, crew->scratch_bytes)) call_others(crew);
    await_members(count);
}
