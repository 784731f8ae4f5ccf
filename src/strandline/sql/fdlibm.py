"""exp, log and powers to the last bit as Java computes them: after fdlibm, which StrictMath is defined by.

The C library that DuckDB uses differs in the last digit for every tenth number or so. The names of the constants, and
the order of the operations, are fdlibm's: every rounding counts.
"""

from __future__ import annotations

import math
import struct

_LN2_HI, _LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_INV_LN2 = 1.44269504088896338700e00
_P1, _P2, _P3 = 1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05
_P4, _P5 = -1.65339022054652515390e-06, 4.13813679705723846039e-08
_LG = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
    1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01,
)  # fmt: skip
_IVLN10, _LOG10_2HI, _LOG10_2LO = (
    4.34294481903251816668e-01,
    3.01029995663611771306e-01,
    3.69423907715893078616e-13,
)
_L = (
    5.99999999999994648725e-01, 4.28571428578550184252e-01, 3.33333329818377432918e-01, 2.72728123808534006489e-01,
    2.30660745775561754067e-01, 2.06975017800338417784e-01,
)  # fmt: skip
_BP, _DP_H, _DP_L = (1.0, 1.5), (0.0, 5.84962487220764160156e-01), (0.0, 1.35003920212974897128e-08)
_LG2, _LG2_H, _LG2_L = (
    6.93147180559945286227e-01,
    6.93147182464599609375e-01,
    -1.90465429995776804525e-09,
)
_CP, _CP_H, _CP_L = (
    9.61796693925975554329e-01,
    9.61796700954437255859e-01,
    -7.02846165095275826516e-09,
)
_IVLN2_H, _IVLN2_L = 1.44269502162933349609e00, 1.92596299112661746887e-08
_OVERFLOW = 8.0085662595372944372e-17


def _words(x: float) -> tuple[int, int]:
    """The high word of a double, with its sign, and the low one."""
    low, high = struct.unpack("<Ii", struct.pack("<d", x))
    return high, low


def _made(high: int, low: int = 0) -> float:
    number: float = struct.unpack("<d", struct.pack("<II", low, high & 0xFFFFFFFF))[0]
    return number


def _short(x: float) -> float:
    """A double without its low word."""
    return _made(_words(x)[0])


def _tail(x: float) -> float:
    """The polynomial that exp and pow share."""
    t = x * x
    return x - t * (_P1 + t * (_P2 + t * (_P3 + t * (_P4 + t * _P5))))


def exp(x: float) -> float:
    """The power of e."""
    if math.isnan(x):
        return x
    if x > 7.09782712893383973096e02:
        return math.inf
    if x < -7.45133219101941108420e02:
        return 0.0
    hx = _words(x)[0] & 0x7FFFFFFF
    k, hi, lo = 0, 0.0, 0.0
    if hx > 0x3FD62E42:
        near, sign = hx < 0x3FF0A2B2, -1 if x < 0 else 1
        k = sign if near else int(_INV_LN2 * x + 0.5 * sign)
        hi, lo = x - k * _LN2_HI, k * _LN2_LO
        x = hi - lo
    elif hx < 0x3E300000:
        return 1.0 + x
    c = _tail(x)
    if k == 0:
        return 1.0 - ((x * c) / (c - 2.0) - x)
    y = 1.0 - ((lo - (x * c) / (2.0 - c)) - hi)
    return math.ldexp(y, k) if k >= -1021 else math.ldexp(y, k + 1000) * 2.0**-1000


def log(x: float) -> float:
    """The natural logarithm of a number above zero."""
    if math.isnan(x) or x == math.inf:
        return x
    k = 0
    if x < 2.0**-1022:
        k, x = -54, x * 2.0**54
    hx, low = _words(x)
    k += (hx >> 20) - 1023
    hx &= 0xFFFFF
    i = (hx + 0x95F64) & 0x100000
    k += i >> 20
    return _log_of(_made(hx | (i ^ 0x3FF00000), low) - 1.0, k, hx)


def _log_of(f: float, k: int, hx: int) -> float:
    if (0xFFFFF & (2 + hx)) < 3:
        if f == 0.0:
            return k * _LN2_HI + k * _LN2_LO if k else 0.0
        r = f * f * (0.5 - 0.33333333333333333 * f)
        return k * _LN2_HI - ((r - k * _LN2_LO) - f) if k else f - r
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    t1 = w * (_LG[1] + w * (_LG[3] + w * _LG[5]))
    t2 = z * (_LG[0] + w * (_LG[2] + w * (_LG[4] + w * _LG[6])))
    r = t2 + t1
    if ((hx - 0x6147A) | (0x6B851 - hx)) > 0:
        half = 0.5 * f * f
        if k == 0:
            return f - (half - s * (half + r))
        return k * _LN2_HI - ((half - (s * (half + r) + k * _LN2_LO)) - f)
    return k * _LN2_HI - ((s * (f - r) - k * _LN2_LO) - f) if k else f - s * (f - r)


def log10(x: float) -> float:
    """The logarithm to ten of a number above zero."""
    if math.isnan(x) or x == math.inf:
        return x
    k = 0
    if x < 2.0**-1022:
        k, x = -54, x * 2.0**54
    hx, low = _words(x)
    k += (hx >> 20) - 1023
    i = 1 if k < 0 else 0
    y = float(k + i)
    z = y * _LOG10_2LO + _IVLN10 * log(_made((hx & 0xFFFFF) | ((0x3FF - i) << 20), low))
    return z + y * _LOG10_2HI


def cbrt(x: float) -> float:
    """The cube root."""
    if x == 0.0 or not math.isfinite(x):
        return x
    a = abs(x)
    hx = _words(a)[0]
    t = (
        _made(_words(2.0**54 * a)[0] // 3 + 696219795)
        if hx < 0x00100000
        else _made(hx // 3 + 715094163)
    )
    r = t * t / a
    s = 5.42857142857142815906e-01 + r * t
    t *= 3.57142857142857150787e-01 + 1.60714285714285720630e00 / (
        s + 1.41428571428571436819e00 + -7.05306122448979611050e-01 / s
    )
    t = _made(_words(t)[0] + 1)
    r = a / (t * t)
    r = (r - t) / (t + t + r)
    return math.copysign(t + t * r, x)


def pow(x: float, y: float) -> float:  # noqa: A001  # as in Java
    """A number to the power of another."""
    if y == 0.0:
        return 1.0
    if math.isnan(x) or math.isnan(y):
        return math.nan
    odd = math.isfinite(y) and abs(y) < 2.0**53 and y % 2.0 in (1.0, -1.0)
    simple = _simple_power(x, y, odd=odd)
    if simple is not None:
        return simple
    sign = -1.0 if x < 0 and odd else 1.0
    if x < 0 and not y.is_integer():
        return math.nan
    ax = abs(x)
    ix, above = _words(ax)[0], y > 0
    if abs(y) >= 2.0**31 and _words(abs(y))[0] > 0x41E00000:
        if ix < 0x3FEFFFFF or (abs(y) >= 2.0**64 and ix <= 0x3FEFFFFF):
            return sign * (0.0 if above else math.inf)
        if ix > 0x3FF00000 or (abs(y) >= 2.0**64 and ix >= 0x3FF00000):
            return sign * (math.inf if above else 0.0)
        t1, t2 = _log2_near_one(ax)
    else:
        t1, t2 = _log2(ax)
    return sign * _exp2(y, t1, t2)


def _simple_power(x: float, y: float, *, odd: bool) -> float | None:  # noqa: PLR0911  # one case per line
    """Powers that need no logarithm; None for the others."""
    if math.isinf(y):
        if abs(x) == 1.0:
            return math.nan
        return math.inf if (abs(x) > 1.0) == (y > 0) else 0.0
    if y == 1.0:
        return x
    if y == -1.0:
        return 1.0 / x if x else math.copysign(math.inf, x)
    if y == 2.0:
        return x * x
    if y == 0.5 and not math.isinf(x):
        return math.nan if x < 0 else math.sqrt(x + 0.0)
    if x != 0.0 and abs(x) != 1.0 and not math.isinf(x):
        return None
    z = abs(x)
    if y < 0:
        z = 0.0 if math.isinf(z) else math.inf if z == 0.0 else 1.0
    negative = math.copysign(1.0, x) < 0
    if x == -1.0 and not y.is_integer():
        return math.nan
    return -z if negative and odd else z


def _log2_near_one(ax: float) -> tuple[float, float]:
    t = ax - 1.0
    w = (t * t) * (0.5 - t * (0.3333333333333333333333 - t * 0.25))
    u = _IVLN2_H * t
    v = t * _IVLN2_L - w * _INV_LN2
    t1 = _short(u + v)
    return t1, v - (t1 - u)


def _log2(ax: float) -> tuple[float, float]:
    """The logarithm to two, as a sum of two doubles."""
    n = 0
    if ax < 2.0**-1022:
        ax, n = ax * 2.0**53, -53
    ix, low = _words(ax)
    n += (ix >> 20) - 0x3FF
    j = ix & 0xFFFFF
    ix = j | 0x3FF00000
    k = 1 if 0x3988E < j < 0xBB67A else 0
    if j >= 0xBB67A:
        n, ix = n + 1, ix - 0x00100000
    ax = _made(ix, low)
    u, v = ax - _BP[k], 1.0 / (ax + _BP[k])
    ss = u * v
    s_h = _short(ss)
    t_h = _made(((ix >> 1) | 0x20000000) + 0x00080000 + (k << 18))
    t_l = ax - (t_h - _BP[k])
    s_l = v * ((u - s_h * t_h) - s_h * t_l)
    s2 = ss * ss
    r = s2 * s2 * (_L[0] + s2 * (_L[1] + s2 * (_L[2] + s2 * (_L[3] + s2 * (_L[4] + s2 * _L[5])))))
    r += s_l * (s_h + ss)
    s2 = s_h * s_h
    t_h = _short(3.0 + s2 + r)
    t_l = r - ((t_h - 3.0) - s2)
    u = s_h * t_h
    v = s_l * t_h + t_l * ss
    p_h = _short(u + v)
    p_l = v - (p_h - u)
    z_h = _CP_H * p_h
    z_l = _CP_L * p_h + p_l * _CP + _DP_L[k]
    t1 = _short(((z_h + z_l) + _DP_H[k]) + n)
    return t1, z_l - (((t1 - n) - _DP_H[k]) - z_h)


def _exp2(y: float, t1: float, t2: float) -> float:
    """Two to the power of y times the sum of two doubles."""
    y1 = _short(y)
    p_l, p_h = (y - y1) * t1 + y * t2, y1 * t1
    z = p_l + p_h
    if z > 1024.0 or (z == 1024.0 and p_l + _OVERFLOW > z - p_h):
        return math.inf
    if z < -1075.0 or (z == -1075.0 and p_l <= z - p_h):
        return 0.0
    j, n = _words(z)[0], 0
    i = j & 0x7FFFFFFF
    if i > 0x3FE00000:
        k = (i >> 20) - 0x3FF
        n = j + (0x00100000 >> (k + 1))
        k = ((n & 0x7FFFFFFF) >> 20) - 0x3FF
        t = _made(n & ~(0x000FFFFF >> k))
        n = ((n & 0x000FFFFF) | 0x00100000) >> (20 - k)
        n = -n if j < 0 else n
        p_h -= t
    t = _short(p_l + p_h)
    u = t * _LG2_H
    v = (p_l - (t - p_h)) * _LG2 + t * _LG2_L
    z = u + v
    w = v - (z - u)
    c = _tail(z)
    r = (z * c) / (c - 2.0) - (w + z * w)
    return math.ldexp(1.0 - (r - z), n)


FDLIBM = ((exp, 1), (log, 1), (log10, 1), (cbrt, 1), (pow, 2))
