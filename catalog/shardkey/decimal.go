package shardkey

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
)

// Decimal128 values are read here, exactly: (-1)^neg × coef × 10^exp.

type decimalClass int

const (
	decFinite decimalClass = iota
	decInf
	decNaN
)

const (
	decBias   = 6176
	maxDigits = 34
)

// uint128 is an unsigned 128-bit number.
type uint128 struct{ hi, lo uint64 }

// decimal is a Decimal128 taken apart. A zero has exp 0 and is not negative.
type decimal struct {
	class decimalClass
	neg   bool
	coef  uint128
	exp   int
}

// tenTo34 is the first coefficient with too many digits.
var tenTo34 = uint128{0x1ed09bead87c0, 0x378d8e6400000000}

// pow10 holds the powers of ten that fit into 64 bits.
var pow10 = [...]uint64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
}

// readDecimal reads the 16 bytes of a Decimal128 in its binary (BID) form.
// A coefficient that is not canonical counts as zero, as IEEE 754 wants it.
func readDecimal(value []byte) decimal {
	if len(value) < 16 {
		return decimal{}
	}
	lo, hi := binary.LittleEndian.Uint64(value), binary.LittleEndian.Uint64(value[8:])
	d := decimal{neg: hi>>63 == 1}
	switch {
	case hi>>58&0x1f == 0x1f:
		d.class = decNaN
		return d
	case hi>>58&0x1f == 0x1e:
		d.class = decInf
		return d
	case hi>>61&3 == 3:
		return decimal{}
	}
	d.exp = int(hi>>49&0x3fff) - decBias
	d.coef = uint128{hi & (1<<49 - 1), lo}
	if d.coef == (uint128{}) || !d.coef.less(tenTo34) {
		return decimal{}
	}
	return d
}

func (u uint128) less(v uint128) bool { return u.hi < v.hi || u.hi == v.hi && u.lo < v.lo }

// mul10 is u×10; the product must fit.
func (u uint128) mul10() uint128 {
	hi, lo := bits.Mul64(u.lo, 10)
	return uint128{u.hi*10 + hi, lo}
}

// div is u divided by a 64-bit number, with the rest.
func (u uint128) div(d uint64) (uint128, uint64) {
	q, r := u.hi/d, u.hi%d
	lo, r := bits.Div64(r, u.lo, d)
	return uint128{q, lo}, r
}

// normal returns the coefficient with exactly 34 digits and the exponent that
// goes with it, so that equal numbers look equal.
func (d decimal) normal() (uint128, int) {
	c, e := d.coef, d.exp
	for {
		next := c.mul10()
		if c == (uint128{}) || !next.less(tenTo34) {
			return c, e
		}
		c, e = next, e-1
	}
}

// int64 rounds to the nearest integer, ties to even, clamped; NaN is 0.
func (d decimal) int64() int64 {
	switch d.class {
	case decNaN:
		return 0
	case decInf:
		return clamp(d.neg, uint128{1, 0})
	case decFinite:
	}
	c, e := d.coef, d.exp
	for ; e > 0 && c.hi == 0 && c.lo != 0; e-- {
		c = c.mul10()
	}
	if e < -maxDigits {
		return 0
	}
	half, sticky := false, false
	for e < 0 {
		step := min(-e, 19)
		q, r := c.div(pow10[step])
		sticky = sticky || half
		tie := 5 * pow10[step-1]
		half = r >= tie
		sticky = sticky || r != 0 && r != tie
		c, e = q, e+step
	}
	if half && (sticky || c.lo&1 == 1) {
		c.lo++
		if c.lo == 0 {
			c.hi++
		}
	}
	return clamp(d.neg, c)
}

// clamp makes a signed number of a magnitude.
func clamp(neg bool, c uint128) int64 {
	switch {
	case c.hi != 0 && neg, neg && c.lo > 1<<63:
		return math.MinInt64
	case neg:
		return int64(-c.lo)
	case c.hi != 0, c.lo > math.MaxInt64:
		return math.MaxInt64
	default:
		return int64(c.lo)
	}
}

// truncate returns the magnitude of a finite number as the nearest double
// towards zero, and whether that is exact.
func (d decimal) truncate() (float64, bool) {
	switch {
	case d.coef == uint128{}:
		return 0, true
	case d.coef.hi == 0 && d.exp >= -19 && d.exp <= 0:
		return truncateQuotient(d.coef.lo, pow10[-d.exp])
	case d.coef.hi == 0 && d.exp > 0 && d.exp <= 19:
		hi, lo := bits.Mul64(d.coef.lo, pow10[d.exp])
		return truncate128(uint128{hi, lo}, false, 0)
	default:
		return d.truncateBig()
	}
}

// truncateQuotient divides two 64-bit numbers into a double, towards zero.
func truncateQuotient(c, by uint64) (float64, bool) {
	// Shift so that the quotient has 63 or 64 bits, more than a double holds.
	up := bits.LeadingZeros64(c)
	down := bits.LeadingZeros64(by)
	num, den := c<<up, by<<down // both in [2^63, 2^64)
	hi, lo := num>>1, num<<63   // num × 2^63
	q, r := bits.Div64(hi, lo, den)
	return truncate128(uint128{0, q}, r != 0, down-up-63)
}

// truncate128 is u × 2^exp as a double, towards zero; sticky says that u is
// itself cut off. The result must be a normal double.
func truncate128(u uint128, sticky bool, exp int) (float64, bool) {
	if u.hi != 0 {
		n := 64 - bits.LeadingZeros64(u.hi)
		sticky = sticky || u.lo<<(64-n) != 0
		u = uint128{0, u.hi<<(64-n) | u.lo>>n}
		exp += n
	}
	if n := 64 - bits.LeadingZeros64(u.lo) - 53; n > 0 {
		sticky = sticky || u.lo<<(64-n) != 0
		u.lo >>= n
		exp += n
	}
	return math.Ldexp(float64(u.lo), exp), !sticky
}

// truncateBig is truncate for the rare numbers that need more than 128 bits. It
// allocates.
func (d decimal) truncateBig() (float64, bool) {
	switch {
	case d.exp > 308:
		return math.MaxFloat64, false
	case d.exp < -324-maxDigits:
		return 0, false
	}
	num := new(big.Int).SetUint64(d.coef.hi)
	num.Lsh(num, 64).Or(num, new(big.Int).SetUint64(d.coef.lo))
	den := big.NewInt(1)
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(d.exp, -d.exp))), nil)
	if d.exp >= 0 {
		num.Mul(num, scale)
	} else {
		den = scale
	}
	x := new(big.Rat).SetFrac(num, den)
	f, exact := x.Float64()
	switch {
	case exact:
		return f, true
	case math.IsInf(f, 0):
		return math.MaxFloat64, false
	case new(big.Rat).SetFloat64(f).Cmp(x) > 0:
		f = math.Nextafter(f, 0)
	}
	return f, false
}
