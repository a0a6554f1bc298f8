package wire

import (
	"math/bits"
	"sync"
)

// Buffers lends byte slices by size class (powers of two from 1 KiB to 64 MiB).
// The zero value is ready; it is safe for concurrent use.
type Buffers struct {
	classes [bufferClasses]sync.Pool
}

const (
	smallestClass = 10 // 1 KiB
	largestClass  = 26 // 64 MiB
	bufferClasses = largestClass - smallestClass + 1
)

// Get returns an empty buffer with room for at least n bytes. The caller owns it
// until Put.
func (p *Buffers) Get(n int) *[]byte {
	c := max(bits.Len(uint(max(n, 1)-1))-smallestClass, 0)
	if c >= bufferClasses {
		b := make([]byte, 0, n)
		return &b
	}
	if b, ok := p.classes[c].Get().(*[]byte); ok {
		*b = (*b)[:0]
		return b
	}
	b := make([]byte, 0, 1<<(c+smallestClass))
	return &b
}

// Put gives a buffer back; nil is allowed. The caller must hold no slice of it.
// A buffer that was grown by append goes into the class that its capacity fills.
func (p *Buffers) Put(b *[]byte) {
	if b == nil || cap(*b) < 1<<smallestClass {
		return
	}
	c := bits.Len(uint(cap(*b))) - 1 - smallestClass
	if c >= bufferClasses {
		return
	}
	p.classes[c].Put(b)
}

// Grow returns b with room for at least n bytes more: b itself, or a copy in a larger buffer of the pool, which then keeps
// b's memory.
func (p *Buffers) Grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b
	}
	larger := p.Get(len(b) + n)
	grown := append(*larger, b...)
	*larger = b
	p.Put(larger)
	return grown
}
