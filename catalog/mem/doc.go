// Package mem keeps the catalog in memory, for tests: [Store] answers as
// catalog/pg does, and can be made to fail on demand. Nothing outlives it.
package mem
