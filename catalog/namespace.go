package catalog

import "strings"

// SplitNS splits "db.coll" at the first dot. A name without a dot is that of a
// database, and coll is empty.
func SplitNS(ns string) (db, coll string) {
	db, coll, _ = strings.Cut(ns, ".")
	return db, coll
}

// LockDatabase returns the database whose lock excludes the lock called name and
// is excluded by it; it is empty for names that begin with "$". The lock of a
// database belongs to itself.
func LockDatabase(name string) string {
	if strings.HasPrefix(name, "$") {
		return ""
	}
	db, _ := SplitNS(name)
	return db
}

// LocksConflict reports whether the locks called a and b exclude each other.
func LocksConflict(a, b string) bool {
	if a == b {
		return true
	}
	da, db := LockDatabase(a), LockDatabase(b)
	return da != "" && da == db && (a == da || b == db)
}
