/* A bare timed loop in C around an ONNX Runtime session, for `ort_against_c.py` to hold the Python loop against.
 *
 * The wheel of onnxruntime brings libonnxruntime.so without headers, so the table of functions is addressed by slot.
 * Slots are those of `struct OrtApi` in include/onnxruntime/core/session/onnxruntime_c_api.h; the table only grows
 * at its end (its source asserts that slot 101 is ReleaseCustomOpDomain, 126 ReleaseAvailableProviders and 149
 * SetGlobalSpinControl), so they hold for every release since 1.5, in which the newest of them (138) shipped.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum slot {
    GET_ERROR_MESSAGE = 2,
    CREATE_ENV = 3,
    CREATE_SESSION = 7,
    CREATE_SESSION_OPTIONS = 10,
    SET_INTRA_OP_THREADS = 24,
    SET_INTER_OP_THREADS = 25,
    CREATE_TENSOR_WITH_DATA = 49,
    CREATE_CPU_MEMORY_INFO = 69,
    RELEASE_ENV = 92,
    RELEASE_STATUS = 93,
    RELEASE_MEMORY_INFO = 94,
    RELEASE_SESSION = 95,
    RELEASE_VALUE = 96,
    RELEASE_SESSION_OPTIONS = 100,
    ADD_SESSION_CONFIG_ENTRY = 130,
    RUN_WITH_BINDING = 133,
    CREATE_IO_BINDING = 134,
    RELEASE_IO_BINDING = 135,
    BIND_INPUT = 136,
    BIND_OUTPUT = 137,
};

enum { API_VERSION = 5, LOG_ERRORS = 3, DEVICE_ALLOCATOR = 0, DEFAULT_MEMORY = 0, FLOAT32 = 1, MAX_VALUES = 16 };

typedef void *status; /* NULL is success */
typedef struct {
    const void *const *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} api_base;

typedef status (*run_with_binding)(void *session, const void *run_options, const void *binding);

typedef struct {
    const void *const *api;
    void *library, *env, *options, *session, *binding, *memory;
    void *values[MAX_VALUES];
    int value_count;
    char error[1024];
} bare;

static void release(bare *b, enum slot slot, void *thing) {
    if (thing) ((void (*)(void *))b->api[slot])(thing);
}

/* 1 if `s` is a failure, whose text is then kept. */
static int failed(bare *b, status s) {
    if (!s) return 0;
    snprintf(b->error, sizeof b->error, "%s", ((const char *(*)(status))b->api[GET_ERROR_MESSAGE])(s));
    release(b, RELEASE_STATUS, s);
    return 1;
}

static int load_api(bare *b, const char *library) {
    b->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    const api_base *(*get_base)(void) = b->library ? (const api_base *(*)(void))dlsym(b->library, "OrtGetApiBase") : NULL;
    if (!get_base) {
        snprintf(b->error, sizeof b->error, "%s", dlerror());
        return 1;
    }
    b->api = get_base()->get_api(API_VERSION);
    return b->api == NULL;
}

bare *bare_new(void) { return calloc(1, sizeof(bare)); }

const char *bare_error(const bare *b) { return b->error; }

/* Prepares session options; 0 on success. */
int bare_prepare(bare *b, const char *library, int threads) {
    if (load_api(b, library)) return 1;
    return failed(b, ((status(*)(int, const char *, void **))b->api[CREATE_ENV])(LOG_ERRORS, "bare", &b->env)) ||
           failed(b, ((status(*)(void **))b->api[CREATE_SESSION_OPTIONS])(&b->options)) ||
           failed(b, ((status(*)(void *, int))b->api[SET_INTRA_OP_THREADS])(b->options, threads)) ||
           failed(b, ((status(*)(void *, int))b->api[SET_INTER_OP_THREADS])(b->options, 1)) ||
           failed(b, ((status(*)(int, int, void **))b->api[CREATE_CPU_MEMORY_INFO])(DEVICE_ALLOCATOR, DEFAULT_MEMORY,
                                                                                   &b->memory));
}

int bare_configure(bare *b, const char *key, const char *value) {
    return failed(b, ((status(*)(void *, const char *, const char *))b->api[ADD_SESSION_CONFIG_ENTRY])(b->options, key,
                                                                                                     value));
}

int bare_load(bare *b, const char *model) {
    return failed(b, ((status(*)(void *, const char *, void *, void **))b->api[CREATE_SESSION])(b->env, model, b->options,
                                                                                              &b->session)) ||
           failed(b, ((status(*)(void *, void **))b->api[CREATE_IO_BINDING])(b->session, &b->binding));
}

/* Binds the caller's float32 buffer, which must outlive `b`; `output` chooses the side. */
int bare_bind(bare *b, int output, const char *name, float *data, size_t bytes, const int64_t *shape, size_t rank) {
    if (b->value_count == MAX_VALUES) {
        snprintf(b->error, sizeof b->error, "more than %d inputs and outputs", MAX_VALUES);
        return 1;
    }
    void **value = &b->values[b->value_count];
    if (failed(b, ((status(*)(void *, void *, size_t, const int64_t *, size_t, int, void **))b->api[CREATE_TENSOR_WITH_DATA])(
                      b->memory, data, bytes, shape, rank, FLOAT32, value)))
        return 1;
    b->value_count++;
    enum slot bind = output ? BIND_OUTPUT : BIND_INPUT;
    return failed(b, ((status(*)(void *, const char *, void *))b->api[bind])(b->binding, name, *value));
}

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* the clock behind Python's perf_counter_ns on Linux */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The loop: nanoseconds of each of `calls` calls go to `latency_ns`; 0 on success. */
int bare_time(bare *b, int64_t calls, int64_t *latency_ns) {
    run_with_binding run = (run_with_binding)b->api[RUN_WITH_BINDING];
    for (int64_t i = 0; i < calls; i++) {
        int64_t begin = now_ns();
        status s = run(b->session, NULL, b->binding);
        latency_ns[i] = now_ns() - begin;
        if (failed(b, s)) return 1;
    }
    return 0;
}

void bare_free(bare *b) {
    if (b->api) {
        release(b, RELEASE_IO_BINDING, b->binding);
        for (int i = 0; i < b->value_count; i++) release(b, RELEASE_VALUE, b->values[i]);
        release(b, RELEASE_SESSION, b->session);
        release(b, RELEASE_MEMORY_INFO, b->memory);
        release(b, RELEASE_SESSION_OPTIONS, b->options);
        release(b, RELEASE_ENV, b->env);
    }
    free(b);
}
