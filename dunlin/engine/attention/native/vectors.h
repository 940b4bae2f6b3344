// Sixteen vectors at once, turned or folded, and the exponential: what the kernels share of AVX-512.

#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#define INLINE_VECTORS static inline __attribute__((always_inline, target("avx512f,avx512dq,fma")))

namespace {

// 16 vectors of 16 words each, transposed.
INLINE_VECTORS void transpose16(__m512i *a) {
    __m512i b[16];
    for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        b[4 + i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        b[8 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        b[12 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0x88);
        a[4 + i] = _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0x88);
        a[8 + i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0xdd);
        a[12 + i] = _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0xdd);
    }
}

struct Add {
    INLINE_VECTORS __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};
struct Greater {
    INLINE_VECTORS __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};

// Sixteen vectors, each folded to a number of the result.
template <class F> INLINE_VECTORS __m512 fold16(const __m512 *a) {
    __m512 quads[4];
    for (int i = 0; i < 4; i++) {
        const __m512 x = F::of(_mm512_unpacklo_ps(a[4 * i], a[4 * i + 1]), _mm512_unpackhi_ps(a[4 * i], a[4 * i + 1]));
        const __m512 y =
            F::of(_mm512_unpacklo_ps(a[4 * i + 2], a[4 * i + 3]), _mm512_unpackhi_ps(a[4 * i + 2], a[4 * i + 3]));
        const __m512d xd = _mm512_castps_pd(x), yd = _mm512_castps_pd(y);
        quads[i] = F::of(_mm512_castpd_ps(_mm512_unpacklo_pd(xd, yd)), _mm512_castpd_ps(_mm512_unpackhi_pd(xd, yd)));
    }
    const __m512 x = F::of(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
    const __m512 y = F::of(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
    return F::of(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}

INLINE_VECTORS __m512 sum16(const __m512 *a) { return fold16<Add>(a); }

// exp(x) = (1 + r + p r^2) 2^n, within 2 ulp, where `x` is such that the result is a normal number.
struct ExpParts {
    __m512 n, r, p;
};

INLINE_VECTORS ExpParts exp_parts(__m512 x) {
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    return {n, r, p};
}

// 2^x in the accuracy of bf16; 0 below -126, for a result that is no normal number takes a hundred times as long. What is no
// number stays none.
INLINE_VECTORS __m512 power_of_two(__m512 x) {
    const __m512 least = _mm512_set1_ps(-126.0f), limited = _mm512_max_ps(least, x);
    const __mmask16 seen = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(limited, 8), r = _mm512_sub_ps(limited, n);
    __m512 p = _mm512_set1_ps(9.6180e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40226e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931472e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(seen, p, n);
}

} // namespace

#endif
