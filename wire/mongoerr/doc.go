// Package mongoerr holds MongoDB's error codes, their names, the labels that
// drivers read, and the Error that becomes an ok:0 reply.
//
// It is a leaf: it knows nothing of sockets, shards or the catalog, and every
// room may import it. Errors answer questions by method (Retriable, NotPrimary);
// nobody looks into their texts.
package mongoerr
