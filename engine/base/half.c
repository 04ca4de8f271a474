/* half.c - IEEE binary16 and bfloat16, one value per call. */
#include "base/base.h"
#include "base/half_inline.h"

uint16_t dw_f32_to_bf16(float f) { return dw_f32_to_bf16_inline(f); }

float dw_f16_to_f32(uint16_t h) { return dw_f16_to_f32_inline(h); }

uint16_t dw_f32_to_f16(float f) { return dw_f32_to_f16_inline(f); }
