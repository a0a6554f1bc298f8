package router

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/backend"
	"github.com/shardgate/shardgate/catalog"
	"github.com/shardgate/shardgate/catalog/shardkey"
	"github.com/shardgate/shardgate/wire/mongoerr"
)

// AddShard adds a replica set as a shard, with what it holds, and returns its name.
// The same again is no error (MONGOS.md §1.8).
func (r *Router) AddShard(ctx context.Context, target, name string, weight float64) (string, error) {
	if err := checkSeeds(target); err != nil {
		return "", err
	}
	if id, err := r.knownShard(target, name); id != "" || err != nil {
		return id, err
	}
	p, err := backend.ProbeHost(ctx, target, &r.opts.Backend)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(p.Version, "6.0.") && !r.opts.AllowUntestedVersions {
		return "", mongoerr.Newf(mongoerr.OperationFailed, "%s runs MongoDB %s: only 6.0 is tested (shards.allowUntestedVersions takes others)", target, p.Version)
	}
	return r.addProbed(ctx, p, name, weight)
}

// addProbed adds a replica set by what it says of itself.
func (r *Router) addProbed(ctx context.Context, p *backend.Probe, name string, weight float64) (string, error) {
	id := cmp.Or(name, p.SetName)
	host := p.SetName + "/" + strings.Join(p.Hosts, ",")
	// Nobody makes or drops anything in the databases that it brings along.
	locks := append([]string{"$shards"}, slices.Sorted(maps.Keys(p.Databases))...)
	err := r.withLocks(ctx, locks, "addShard "+id, func(held []catalog.Lock) error {
		s := r.snap.Load()
		// It may have been added meanwhile, or by other members than the target names.
		if known, err := r.knownShard(host, name); known != "" || err != nil {
			id = known
			return err
		}
		if _, ok := s.Shards[id]; ok {
			return mongoerr.Newf(mongoerr.IllegalOperation, "a shard named %s exists already with other hosts", id)
		}
		c, err := r.takeIn(s, id, p)
		if err != nil {
			return err
		}
		c.Locks = held
		c.Shards = []catalog.Shard{{
			ID: id, Host: host, Weight: weight, Version: p.Version, Capabilities: p.Capabilities,
			TopologyTime: catalog.Timestamp(max(r.Clock.Now(), uint64(time.Now().Unix())<<32|1)),
		}}
		c.Log = append(c.Log, r.logEntry("addShard", "", id, bson.D{{Key: "name", Value: id}, {Key: "host", Value: host}}))
		return r.announce(ctx, *c)
	})
	return id, err
}

// checkSeeds refuses hosts of which only some are on the loopback.
func checkSeeds(target string) error {
	_, list, named := strings.Cut(target, "/")
	if !named {
		list = target
	}
	local, other := 0, 0
	for h := range strings.SplitSeq(list, ",") {
		if h == "" || strings.ContainsAny(h, " @?") {
			return mongoerr.Newf(mongoerr.FailedToParse, "could not parse the shard's connection string: %s", target)
		}
		if strings.HasPrefix(h, "localhost") || strings.HasPrefix(h, "127.") || strings.HasPrefix(h, "[::1]") {
			local++
		} else {
			other++
		}
	}
	if local > 0 && other > 0 {
		return mongoerr.New(mongoerr.InvalidOptions, "can't use localhost as a shard since all shards need to communicate: either use all shards and configdbs in localhost or all in actual IPs")
	}
	return nil
}

// knownShard finds the shard that already has a host of the target: the same shard
// again, or a refusal.
func (r *Router) knownShard(target, name string) (string, error) {
	set, list, named := strings.Cut(target, "/")
	if !named {
		set, list = "", target
	}
	for id, sh := range r.snap.Load().Shards {
		haveSet, hosts, err := backend.ParseHost(sh.Host)
		if err != nil {
			continue
		}
		for h := range strings.SplitSeq(list, ",") {
			if !slices.Contains(hosts, h) {
				continue
			}
			if set == haveSet && (name == "" || name == id) {
				return id, nil
			}
			return "", mongoerr.Newf(mongoerr.IllegalOperation, "'%s' is already a member of the existing shard '%s' (%s).", h, sh.Host, id)
		}
	}
	return "", nil
}

// takeIn puts the collections and views that a replica set holds into the catalog, at
// home there. A database known elsewhere may come along, a namespace may not (96).
func (r *Router) takeIn(s *Snapshot, shard string, p *backend.Probe) (*catalog.Change, error) {
	c := &catalog.Change{}
	at := catalog.Timestamp(r.Clock.Now())
	for db, colls := range p.Databases {
		if db == InternalDB {
			continue // what it holds serves for an hour at most
		}
		if _, ok := s.Databases[db]; !ok {
			for other := range s.Databases {
				if strings.EqualFold(other, db) {
					return nil, mongoerr.Newf(mongoerr.OperationFailed, "can't add shard '%s' because its database '%s' differs from '%s' in case only", shard, db, other)
				}
			}
			c.Expect = append(c.Expect, catalog.Expect{NS: db})
			c.Databases = append(c.Databases, catalog.Database{
				Name: db, Primary: shard, Placement: catalog.PlacementSpread, UUID: uuid.New(), Timestamp: at, LastMod: 1,
			})
		}
		for i := range colls {
			row, ok := takenIn(shard, db, &colls[i], at)
			if !ok {
				continue
			}
			for j := range colls {
				if colls[i].Type == "timeseries" && colls[j].Name == bucketsPrefix+colls[i].Name {
					copy(row.UUID[:], colls[j].Info.UUID.Data)
				}
			}
			if s.Entries[row.NS] != nil {
				return nil, mongoerr.Newf(mongoerr.OperationFailed, "can't add shard '%s' because a local collection '%s' exists in the cluster already", shard, row.NS)
			}
			c.Expect = append(c.Expect, catalog.Expect{NS: row.NS})
			c.Put = append(c.Put, row)
		}
	}
	return c, nil
}

// takenIn makes the catalog row of a collection found on a new shard; system
// collections stay the shard's own.
func takenIn(shard, db string, info *backend.ProbedCollection, at catalog.Timestamp) (catalog.CollectionChunks, bool) {
	row := catalog.CollectionChunks{Collection: catalog.Collection{
		NS: db + "." + info.Name, Kind: catalog.KindUnsharded, State: catalog.StateOpen,
		Options: info.Options, Collation: collationOf(info.Options),
		Epoch: bson.NewObjectID(), Timestamp: at, LastMod: time.Now(), Migrations: true,
	}}
	if strings.HasPrefix(info.Name, "system.") {
		return row, false
	}
	if info.Type == "view" {
		row.Kind = catalog.KindView
		return row, true
	}
	copy(row.UUID[:], info.Info.UUID.Data)
	row.Chunks = shardkey.SingleChunk(shard, at)
	return row, true
}
