package router

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// progress is how far a resharding is, as its router notes it on the donor that keeps the
// outcome, each second at most.
type progress struct {
	Docs  int64           `bson:"docs"`  // to copy, as far as was known at the beginning
	Bytes int64           `bson:"bytes"` // of them
	To    []progressShard `bson:"to"`
	// Changed is how many changes were followed.
	Changed int64 `bson:"changed"`
}

// progressShard is what one recipient has got by the scan.
type progressShard struct {
	Shard string `bson:"shard"`
	Docs  int64  `bson:"docs"`
	Bytes int64  `bson:"bytes"`
}

// reportEvery is how often progress is noted.
const reportEvery = time.Second

func progressID(m *catalog.Movement) string { return m.ID.String() + " progress" }

// measure looks how much there is to copy.
func (re *resharding) measure(ctx context.Context) error {
	db, coll := catalog.SplitNS(re.m.row.NS)
	for _, shard := range re.old.Shards() {
		err := re.m.r.drain(ctx, shard, db, bson.D{
			{Key: "aggregate", Value: coll},
			{Key: "pipeline", Value: bson.A{bson.D{{Key: "$collStats", Value: bson.D{{Key: "storageStats", Value: bson.D{}}}}}}},
			{Key: "cursor", Value: bson.D{}},
		}, func(doc bson.Raw) error {
			n, _ := doc.Lookup("storageStats", "count").AsInt64OK()
			size, _ := doc.Lookup("storageStats", "size").AsInt64OK()
			re.far.Docs, re.far.Bytes = re.far.Docs+n, re.far.Bytes+size
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, shard := range re.m.recipients() {
		re.far.To = append(re.far.To, progressShard{Shard: shard})
	}
	return re.report(ctx)
}

// got counts documents that a recipient has got.
func (re *resharding) got(shard string, docs []bson.Raw) {
	for i := range re.far.To {
		if to := &re.far.To[i]; to.Shard == shard {
			to.Docs += int64(len(docs))
			for _, d := range docs {
				to.Bytes += int64(len(d))
			}
		}
	}
}

// report notes the progress, if it is time.
func (re *resharding) report(ctx context.Context) error {
	if time.Since(re.reported) < reportEvery {
		return nil
	}
	re.reported = time.Now()
	_, re.far.Changed = re.counts()
	_, err := re.m.note(ctx, re.m.row.From, progressID(&re.m.row), bson.D{{Key: "progress", Value: re.far}})
	return err
}

// reshardingOps are the rows by which $currentOp shows reshardings, with MongoDB's names: one
// for all, and one for each donor and recipient (MONGOS.md §7.1).
func (r *Router) reshardingOps(ctx context.Context) ([]bson.Raw, error) {
	s := r.snap.Load()
	var rows []bson.Raw
	for _, m := range s.Movements {
		e := s.Entries[m.NS]
		if m.Layout == nil || m.State != catalog.MovementCopying || e == nil || e.Coll.UUID != m.Collection {
			continue
		}
		far, err := r.progressOf(ctx, &m)
		if err != nil {
			return nil, err
		}
		for _, d := range opsOf(&m, e, far, time.Since(m.Since)) {
			raw, err := bson.Marshal(d)
			if err != nil {
				return nil, err
			}
			rows = append(rows, raw)
		}
	}
	return rows, nil
}

// progressOf reads what a resharding's router has noted.
func (r *Router) progressOf(ctx context.Context, m *catalog.Movement) (far progress, err error) {
	err = r.drain(ctx, m.From, InternalDB, bson.D{
		{Key: "find", Value: movesColl}, {Key: "filter", Value: bson.D{{Key: "_id", Value: progressID(m)}}},
	}, func(doc bson.Raw) error {
		d, ok := doc.Lookup("progress").DocumentOK()
		if !ok {
			return mongoerr.Newf(mongoerr.InternalError, "the progress of the resharding of %s cannot be read", m.NS)
		}
		return bson.Unmarshal(d, &far)
	})
	return far, err
}

// opsOf makes the rows of one resharding.
func opsOf(m *catalog.Movement, e *Entry, far progress, elapsed time.Duration) []bson.D {
	command, donor, recipient, state := "reshardCollection", "donating-initial-data", "cloning", "cloning"
	if e.Coll.State != catalog.StateOpen {
		donor, recipient, state = "blocking-writes", "strict-consistency", "blocking-writes"
	}
	key := any(m.Layout.Key)
	if m.Layout.Key == nil {
		command, key = "unshardCollection", bson.D{{Key: "_id", Value: int32(1)}}
	}
	row := func(shard, service string, more ...bson.E) bson.D {
		return append(bson.D{
			{Key: "shard", Value: shard},
			{Key: "type", Value: "op"},
			{Key: "desc", Value: "Resharding" + service + "Service " + m.ID.String()},
			{Key: "op", Value: "command"},
			{Key: "ns", Value: m.NS},
			{Key: "originatingCommand", Value: bson.D{
				{Key: command, Value: m.NS},
				{Key: "key", Value: key},
				{Key: "unique", Value: false},
				{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}},
			}},
			{Key: "totalOperationTimeElapsedSecs", Value: int64(elapsed.Seconds())},
		}, append(more, bson.E{Key: "opStatus", Value: "running"})...)
	}
	var recipients, rows []bson.D
	least, most := int64(-1), int64(-1)
	for _, to := range far.To {
		n := max(int64(len(far.To)), 1)
		left := remaining(far.Docs/n, to.Docs, elapsed)
		if least < 0 || left < least {
			least = left
		}
		most = max(most, left)
		recipients = append(recipients, row(to.Shard, "Recipient",
			bson.E{Key: "remainingOperationTimeEstimatedSecs", Value: left},
			bson.E{Key: "approxDocumentsToCopy", Value: far.Docs / n}, bson.E{Key: "documentsCopied", Value: to.Docs},
			bson.E{Key: "approxBytesToCopy", Value: far.Bytes / n}, bson.E{Key: "bytesCopied", Value: to.Bytes},
			bson.E{Key: "oplogEntriesFetched", Value: far.Changed}, bson.E{Key: "oplogEntriesApplied", Value: far.Changed},
			bson.E{Key: "recipientState", Value: recipient}))
	}
	rows = append(rows, row("config", "Coordinator",
		bson.E{Key: "allShardsLowestRemainingOperationTimeEstimatedSecs", Value: least},
		bson.E{Key: "allShardsHighestRemainingOperationTimeEstimatedSecs", Value: most},
		bson.E{Key: "coordinatorState", Value: state}))
	for _, shard := range e.Table.Shards() {
		rows = append(rows, row(shard, "Donor", bson.E{Key: "donorState", Value: donor}))
	}
	return append(rows, recipients...)
}

// remaining estimates how many seconds the rest takes; -1: nothing is known yet.
func remaining(all, done int64, elapsed time.Duration) int64 {
	switch {
	case done >= all:
		return 0
	case done == 0:
		return -1
	default:
		return int64(elapsed.Seconds() * float64(all-done) / float64(done))
	}
}
