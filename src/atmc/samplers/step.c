/* The fused step on a CPU: noise, momentum, drift and readings of a stretch of one parameter, block by block in cache.
 *
 * The formulas are those of integrator.py and the noise that of random_stream.py; tests hold them together. Built when the
 * package is installed, if there is a C compiler; without it the foreach body serves. This file includes itself twice,
 * for float (with functions that the compiler can vectorise) and for double (with the C library's).
 */
#ifndef REAL

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 2048, QUARTER = BLOCK / 4 };
enum { ATMC = 0, SGNHT = 1, SGHMC = 2, SGLD = 3 };

/* Mirrored by a ctypes structure in fused_native.py. */
typedef struct {
    double lr, last_lr, temperature, mass, inverse_scale, noise, added_noise, inverse_inertia, reference_lr, reference_temperature;
    double decay, epsilon;
    uint64_t key;
    int64_t step;
    int32_t kind, stream, corrected, strang, measure, shared, hyperbolic, preconditioned;
} Settings;

#define INLINE static inline __attribute__((always_inline))

/* So that a library built from another version of this file is noticed. */
int64_t atmc_settings_size(void) { return (int64_t)sizeof(Settings); }

/* Philox-4x32 with ten rounds (Salmon et al. 2011): four random words for each counter of a block. */
static void philox(uint32_t words[4][QUARTER], uint64_t key, uint32_t first, int64_t step, uint32_t stream) {
    for (int i = 0; i < QUARTER; i++) {
        uint32_t c0 = first + (uint32_t)i, c1 = (uint32_t)(step & 0x7fffffff), c2 = (uint32_t)(step >> 31), c3 = stream;
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)b;
            c3 = (uint32_t)a;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[0][i] = c0, words[1][i] = c1, words[2][i] = c2, words[3][i] = c3;
    }
}

/* The polynomials below are Chebyshev interpolants on the reduced range, good to about 1e-8 before rounding. */

/* e^x - 1, to a relative error near 1e-7 for every x. */
INLINE float expm1_float(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float q = 0.000198992743f;
    q = q * r + 0.001394110843f;
    q = q * r + 0.008333298483f;
    q = q * r + 0.0416663529f;
    q = q * r + 0.1666666672f;
    q = q * r + 0.5000000047f;
    q = (q * r + 1.0f) * r;
    int32_t bits = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return scale * q + (scale - 1.0f);
}

/* log x for normal positive x. */
INLINE float log_float(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    int32_t n = (bits - 0x3f3504f3) >> 23; /* so that the rest lies in [sqrt(1/2), sqrt(2)) */
    bits -= n << 23;
    float rest;
    memcpy(&rest, &bits, 4);
    float t = rest - 1.0f;
    float q = -0.07451186274f;
    q = q * t + 0.1280661051f;
    q = q * t - 0.1326603138f;
    q = q * t + 0.1419965009f;
    q = q * t - 0.1660836941f;
    q = q * t + 0.2000093944f;
    q = q * t - 0.250015791f;
    q = q * t + 0.3333334535f;
    q = q * t - 0.499999885f;
    q = q * t + 0.9999999994f;
    return (float)n * 0.693147181f + q * t;
}

/* cos and sin of a whole turn times u, for u in [-1/2, 1/2]. */
INLINE void turn_float(float u, float *cosine, float *sine) {
    float half = rintf(2.0f * u);
    float x = u - 0.5f * half, y = x * x;
    float sign = 1.0f - 2.0f * half * half;
    float c = -24.98143432f;
    c = c * y + 60.14388954f;
    c = c * y - 85.45356476f;
    c = c * y + 64.93934648f;
    c = c * y - 19.73920855f;
    c = c * y + 0.9999999998f;
    float s = -14.39396588f;
    s = s * y + 42.00977922f;
    s = s * y - 76.70427987f;
    s = s * y + 81.60522617f;
    s = s * y - 41.34170212f;
    s = s * y + 6.283185307f;
    *cosine = sign * c;
    *sine = sign * s * x;
}

INLINE double log_double(double x) { return log(x); }
INLINE double expm1_double(double x) { return expm1(x); }
INLINE void turn_double(double u, double *cosine, double *sine) {
    *cosine = cos(6.283185307179586 * u);
    *sine = sin(6.283185307179586 * u);
}
INLINE float sqrt_float(float x) { return sqrtf(x); }
INLINE double sqrt_double(double x) { return sqrt(x); }
INLINE float abs_float(float x) { return fabsf(x); }
INLINE double abs_double(double x) { return fabs(x); }

#define REAL float
#include "step.c"
#undef REAL
#define REAL double
#include "step.c"

#else /* ------------------------------------------------ once for each REAL ------------------------------------------ */

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define F(name) JOIN(name, REAL)

/* One block of standard normals: Box-Muller, four from each Philox call, one in each quarter of the block. */
static void F(normals)(REAL *restrict out, uint64_t key, int64_t block, int64_t step, uint32_t stream) {
    uint32_t words[4][QUARTER];
    philox(words, key, (uint32_t)(block * QUARTER), step, stream);
    for (int pair = 0; pair < 2; pair++) {
        const uint32_t *restrict a = words[2 * pair], *restrict b = words[2 * pair + 1];
        REAL *restrict first = out + 2 * pair * QUARTER, *restrict second = first + QUARTER;
#pragma omp simd
        for (int i = 0; i < QUARTER; i++) {
            REAL u = ((REAL)(int32_t)(a[i] >> 1) + (REAL)0.5) * (REAL)4.656612873077393e-10;
            REAL radius = F(sqrt)(-2 * F(log)(u));
            REAL cosine, sine;
            F(turn)((REAL)(int32_t)b[i] * (REAL)2.3283064365386963e-10, &cosine, &sine);
            first[i] = radius * cosine;
            second[i] = radius * sine;
        }
    }
}

INLINE REAL F(slowing)(REAL p, REAL k, const int hyperbolic) {
    return hyperbolic ? 1 / F(sqrt)(p * p * k + 1) : (REAL)1;
}

/* B(h) of a block, in place; `each` holds a mass per element or is null. */
INLINE void F(momentum)(REAL *restrict p, const REAL *restrict g, const REAL *restrict eta, const REAL *restrict alpha,
                        const REAL *restrict beta, const REAL *restrict each, int n, REAL h, REAL mass, REAL scale, REAL T,
                        const int hyperbolic, const int corrected, const int masses) {
#pragma omp simd
    for (int i = 0; i < n; i++) {
        REAL m = masses ? each[i] : mass, k = masses ? scale / (m * m) : scale;
        REAL r = F(slowing)(p[i], k, hyperbolic);
        REAL x = beta[i] * r * h + (REAL)1e-30;
        REAL e = F(expm1)(-x);
        REAL kick = -e / x * h;
        REAL variance = kick * (e + 2) * alpha[i] * m * T;
        REAL fresh = p[i] + p[i] * e - g[i] * kick + eta[i] * F(sqrt)(variance);
        if (hyperbolic && corrected) {
            REAL change = (F(slowing)(fresh, k, 1) - r) * beta[i] * h * (REAL)0.5;
            fresh -= fresh * (change / (F(abs)(change) + 1));
        }
        p[i] = fresh;
    }
}

/* Sum of q K'(q) over a block, q the momentum in the middle of the coming B(h): `synchronised_virial`. */
INLINE double F(kinetic)(const REAL *restrict p, const REAL *restrict g, const REAL *restrict beta,
                         const REAL *restrict each, int n, REAL h, REAL mass, REAL scale, const int hyperbolic,
                         const int masses) {
    REAL sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) {
        REAL m = masses ? each[i] : mass, k = masses ? scale / (m * m) : scale;
        REAL r = F(slowing)(p[i], k, hyperbolic);
        REAL x = beta[i] * r * h + (REAL)1e-30;
        REAL e = F(expm1)(-x);
        REAL reach = -e / x * h / (e + 2);
        sum += (p[i] - g[i] * reach * ((r * r + 1) * (REAL)0.5)) * p[i] * r / m;
    }
    return sum;
}

/* A(h) of a block; returns the heat if one thermostat is shared by all. */
INLINE double F(drift)(REAL *restrict theta, REAL *restrict xi, const REAL *restrict p, const REAL *restrict each, int n,
                       REAL h, REAL mass, REAL scale, REAL T, REAL inverse_inertia, const int hyperbolic,
                       const int masses, const int thermostat) {
    REAL heat = 0;
#pragma omp simd reduction(+ : heat)
    for (int i = 0; i < n; i++) {
        REAL m = masses ? each[i] : mass, k = masses ? scale / (m * m) : scale;
        REAL r = F(slowing)(p[i], k, hyperbolic);
        REAL velocity = p[i] * r / m;
        theta[i] += velocity * h;
        if (thermostat) {
            REAL warming = (velocity * velocity * m - r * r * r * T) * h * inverse_inertia;
            if (thermostat == 1) xi[i] += warming;
            else heat += warming;
        }
    }
    return heat;
}

INLINE void F(block)(REAL *restrict theta, const REAL *restrict g, REAL *restrict p, REAL *restrict xi,
                     const REAL *restrict each, int n, int64_t block, const Settings *s, double sums[3],
                     const int hyperbolic, const int masses) {
    REAL eta[BLOCK], alpha[BLOCK], beta[BLOCK];
    const REAL h = (REAL)s->lr, m = (REAL)s->mass, k = (REAL)s->inverse_scale, T = (REAL)s->temperature, D = (REAL)s->noise;
    /* What step size and temperature make of the thermostat; one that follows them rests at T = 0. */
    const int warm = s->reference_temperature > 0;
    const double now = s->lr * (warm ? s->reference_temperature : 1), full = s->reference_lr * (warm ? s->temperature : 1);
    const int rests = s->reference_lr > 0 && s->temperature == 0;
    const REAL weight = rests ? 0 : full > now ? (REAL)(now / full) : 1;
    F(normals)(eta, s->key, block, s->step, (uint32_t)s->stream);
    for (int i = 0; i < n; i++) {
        REAL level = s->kind == SGHMC ? 0 : (s->shared ? xi[0] : xi[i]) * weight;
        if (s->kind == ATMC) {
            alpha[i] = D - level > 0 ? D - level : 0;
            beta[i] = level > D ? level : D;
        } else {
            alpha[i] = s->kind == SGHMC ? (REAL)s->added_noise : D;
            beta[i] = D + level;
        }
    }
    const REAL whole = s->strang ? (REAL)s->last_lr : h; /* the step whose middle is at the time of theta */
    if (s->measure) sums[0] += F(kinetic)(p, g, beta, each, n, whole, m, k, hyperbolic, masses);
    if (s->strang) {
        const REAL last = (REAL)(s->last_lr * 0.5);
        if (s->corrected) F(momentum)(p, g, eta, alpha, beta, each, n, last, m, k, T, hyperbolic, 1, masses);
        else F(momentum)(p, g, eta, alpha, beta, each, n, last, m, k, T, hyperbolic, 0, masses);
        F(normals)(eta, s->key, block, s->step, (uint32_t)s->stream + 1);
    }
    const REAL stride = s->strang ? h / 2 : h;
    if (s->corrected) F(momentum)(p, g, eta, alpha, beta, each, n, stride, m, k, T, hyperbolic, 1, masses);
    else F(momentum)(p, g, eta, alpha, beta, each, n, stride, m, k, T, hyperbolic, 0, masses);
    const REAL inverse_inertia = (REAL)s->inverse_inertia * weight;
    if (s->kind == SGHMC) F(drift)(theta, xi, p, each, n, h, m, k, T, 0, hyperbolic, masses, 0);
    else if (!s->shared) F(drift)(theta, xi, p, each, n, h, m, k, T, inverse_inertia, hyperbolic, masses, 1);
    else sums[2] += F(drift)(theta, xi, p, each, n, h, m, k, T, inverse_inertia, hyperbolic, masses, 2);
}

static void F(langevin)(REAL *restrict theta, const REAL *restrict g, REAL *restrict square, int n, int64_t block,
                        const Settings *s) {
    REAL eta[BLOCK];
    const REAL h = (REAL)s->lr, T = (REAL)s->temperature, decay = (REAL)s->decay, epsilon = (REAL)s->epsilon;
    F(normals)(eta, s->key, block, s->step, (uint32_t)s->stream);
#pragma omp simd
    for (int i = 0; i < n; i++) {
        REAL reach = h;
        if (s->preconditioned) {
            square[i] = square[i] * decay + g[i] * g[i] * (1 - decay);
            reach = h / (F(sqrt)(square[i]) + epsilon);
        }
        theta[i] += eta[i] * F(sqrt)(reach * 2 * T) - g[i] * reach;
    }
}

/* A step of elements [start, stop) of a parameter whose blocks are numbered from first_block; start is a block's first
 * element. `p` is the running square for SGLD. Adds p K'(p), theta g and the shared heat to sums. */
void F(atmc_step)(REAL *theta, const REAL *grad, REAL *p, REAL *xi, const REAL *each, int64_t start, int64_t stop,
                  int64_t first_block, const Settings *s, double sums[3]) {
    for (int64_t at = start; at < stop; at += BLOCK) {
        const int n = stop - at < BLOCK ? (int)(stop - at) : BLOCK;
        const int64_t block = first_block + at / BLOCK;
        REAL *here = s->shared ? xi : xi + at;
        if (s->measure) {
            REAL sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < n; i++) sum += theta[at + i] * grad[at + i];
            sums[1] += sum;
        }
        if (s->kind == SGLD) F(langevin)(theta + at, grad + at, p + at, n, block, s);
        else if (each && s->hyperbolic) F(block)(theta + at, grad + at, p + at, here, each + at, n, block, s, sums, 1, 1);
        else if (each) F(block)(theta + at, grad + at, p + at, here, each + at, n, block, s, sums, 0, 1);
        else if (s->hyperbolic) F(block)(theta + at, grad + at, p + at, here, 0, n, block, s, sums, 1, 0);
        else F(block)(theta + at, grad + at, p + at, here, 0, n, block, s, sums, 0, 0);
    }
}

/* Whether all elements are finite: x - x is 0 for those, NaN for the others. */
int32_t F(atmc_finite)(const REAL *x, int64_t count) {
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int n = count - at < BLOCK ? (int)(count - at) : BLOCK;
        int bad = 0;
#pragma omp simd reduction(+ : bad)
        for (int i = 0; i < n; i++) bad += !(x[at + i] - x[at + i] == 0);
        if (bad) return 0;
    }
    return 1;
}

/* The noise of `count` elements from a block on, as the step draws it. */
void F(atmc_noise)(REAL *out, int64_t count, int64_t first_block, uint64_t key, int64_t step, int32_t stream) {
    REAL eta[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        F(normals)(eta, key, first_block + at / BLOCK, step, (uint32_t)stream);
        memcpy(out + at, eta, sizeof(REAL) * (size_t)(count - at < BLOCK ? count - at : BLOCK));
    }
}

#undef F
#undef JOIN
#undef JOIN2
#endif
