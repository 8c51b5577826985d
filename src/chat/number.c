/* number.c: JSON numbers within bounds, digit by digit. A bounded number has no exponent, at most
 * K3I_INT_DIGITS digits before the point and n_frac after it, so every value is an integer multiple
 * of 10^-n_frac below 10^33 and all comparisons are exact in 128 bits. */
#include "grammar_internal.h"

#include <stdlib.h>
#include <string.h>

static k3i_i128 power10(uint32_t n)
{
    k3i_i128 p = 1;
    while (n-- > 0)
        p *= 10;
    return p;
}

k3i_i128 k3i_g_scale_decimal(const char *text, size_t n, uint32_t n_frac, bool round_up,
                             bool *ret_is_exact)
{
    const k3i_i128 limit = power10(K3I_INT_DIGITS + n_frac);
    k3i_i128 value = 0;
    long exponent = n_frac;
    size_t i = 0;
    bool is_negative = n > 0 && text[0] == '-', in_frac = false, lost = false;
    for (i = is_negative; i < n && (text[i] == '.' || (text[i] >= '0' && text[i] <= '9')); i++) {
        if (text[i] == '.') {
            in_frac = true;
            continue;
        }
        if (value < limit) {
            value = value * 10 + (text[i] - '0');
            exponent -= in_frac;
        } else { /* more digits than matter: keep the magnitude */
            lost = lost || text[i] != '0';
            exponent += !in_frac;
        }
    }
    char tail[24] = {0};
    if (i < n && (text[i] == 'e' || text[i] == 'E')) {
        memcpy(tail, text + i + 1, n - i - 1 < sizeof tail - 1 ? n - i - 1 : sizeof tail - 1);
        long e = strtol(tail, NULL, 10);
        exponent += e > 1000 ? 1000 : e < -1000 ? -1000 : e;
    }
    for (; exponent > 0 && value < limit && value != 0; exponent--)
        value *= 10;
    for (; exponent < 0 && (value != 0 || lost); exponent++) {
        lost = lost || value % 10 != 0;
        value /= 10;
        if (value == 0)
            break;
    }
    if (value > limit)
        value = limit;
    *ret_is_exact = !lost;
    if (is_negative)
        return -(value + (lost && !round_up));
    return value + (lost && round_up);
}

typedef struct {
    k3i_i128 low, high; /* magnitudes, in 10^-n_frac; empty if low > high */
} interval;

/* The magnitudes allowed under the sign. */
static interval allowed(const k3i_gnode *node, bool is_negative)
{
    k3i_i128 low = is_negative ? -node->u.number.max : node->u.number.min;
    k3i_i128 high = is_negative ? -node->u.number.min : node->u.number.max;
    return (interval){.low = low < 0 ? 0 : low, .high = high};
}

static k3i_i128 digits_of(const k3i_decimal *d)
{
    return (k3i_i128)d->digits_high << 64 | (k3i_i128)d->digits_low;
}

void k3i_g_decimal_push(k3i_decimal *d, unsigned digit)
{
    k3i_i128 v = digits_of(d) * 10 + digit;
    d->digits_low = (uint64_t)v;
    d->digits_high = (uint64_t)(v >> 64);
    if (d->has_point) {
        d->n_frac++;
        return;
    }
    d->is_zero_led = d->n_int == 0 && digit == 0;
    d->n_int++;
}

/* Integer digits that may still come before the point. */
static uint32_t more_int(const k3i_decimal *d)
{
    return d->has_point || d->is_zero_led ? 0 : K3I_INT_DIGITS - d->n_int;
}

bool k3i_g_decimal_is_feasible(const k3i_gnode *node, const k3i_decimal *d)
{
    interval in = allowed(node, d->is_negative);
    if (d->n_int > K3I_INT_DIGITS || d->n_frac > node->u.number.n_frac)
        return false;
    if (d->n_int == 0)
        return in.low <= in.high;
    k3i_i128 unit = power10(node->u.number.n_frac - d->n_frac), v = digits_of(d);
    for (uint32_t k = 0; k <= more_int(d); k++, unit *= 10) {
        k3i_i128 low = v * unit, high = low + unit - 1;
        if (low <= in.high && high >= in.low && in.low <= in.high)
            return true;
    }
    return false;
}

bool k3i_g_decimal_is_in_range(const k3i_gnode *node, const k3i_decimal *d)
{
    interval in = allowed(node, d->is_negative);
    if (d->n_int == 0 || (d->has_point && d->n_frac == 0))
        return false;
    k3i_i128 v = digits_of(d) * power10(node->u.number.n_frac - d->n_frac);
    return v >= in.low && v <= in.high;
}

/* Is there a multiple of `step` in [low, high] within the interval? */
static bool has_multiple(interval in, k3i_i128 low, k3i_i128 high, k3i_i128 step)
{
    low = low > in.low ? low : in.low;
    high = high < in.high ? high : in.high;
    return low <= high && (low + step - 1) / step * step <= high;
}

uint32_t k3i_g_decimal_cost(const k3i_gnode *node, const k3i_decimal *d)
{
    if (k3i_g_decimal_is_in_range(node, d))
        return 0;
    const uint32_t n_frac = node->u.number.n_frac;
    interval in = allowed(node, d->is_negative);
    uint32_t best = K3I_NEVER;
    if (d->n_int ==
        0) { /* nothing yet, or a sign: every first digit, and a sign if there is none */
        for (unsigned digit = 0; digit < 10; digit++) {
            k3i_decimal first = *d;
            k3i_g_decimal_push(&first, digit);
            if (k3i_g_decimal_is_feasible(node, &first)) {
                uint32_t cost =
                    1 + k3i_g_decimal_cost(node, &first); /* one level: the next has digits */
                best = cost < best ? cost : best;
            }
        }
        return best;
    }
    k3i_i128 unit = power10(n_frac - d->n_frac), v = digits_of(d);
    for (uint32_t k = 0; k <= more_int(d); k++, unit *= 10) {
        k3i_i128 low = v * unit, high = low + unit - 1, whole = power10(n_frac);
        if (!d->has_point && has_multiple(in, low, high, whole) && k < best)
            best = k;
        uint32_t point = d->has_point ? 0 : 1;
        for (uint32_t f = 1; d->n_frac + f <= n_frac; f++) {
            if (k + point + f < best &&
                has_multiple(in, low, high, power10(n_frac - d->n_frac - f)))
                best = k + point + f;
        }
    }
    return best;
}
