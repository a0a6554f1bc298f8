package catalog

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Version numbers a state of the catalog. It rises by one with each change of
// routing metadata and never falls.
type Version int64

// Stopped is what a router acknowledges that has stopped: it begins nothing any more by
// any state. What it still holds, it holds until another incarnation replaces it.
const Stopped Version = math.MaxInt64

// Errors of a Store. They are compared with errors.Is.
var (
	// ErrUnavailable: the catalog could not be reached; the change may or may
	// not have been made.
	ErrUnavailable = errors.New("catalog: unavailable")
	// ErrLocked: another router holds the lock.
	ErrLocked = errors.New("catalog: locked by another operation")
	// ErrLockLost: the lock that should guard a change is no longer held.
	ErrLockLost = errors.New("catalog: lock lost")
	// ErrConflict: an expectation of a Change did not hold, or something that it
	// refers to (shard, database, collection, chunk) is not there.
	ErrConflict = errors.New("catalog: conflict")
	// ErrInvalid: a Change that no state of the catalog would admit.
	ErrInvalid = errors.New("catalog: invalid change")
	// ErrSchema: the stored schema is newer than this program knows.
	ErrSchema = errors.New("catalog: schema is newer than this program")
	// ErrEvicted: the router's registration is gone or was taken over.
	ErrEvicted = errors.New("catalog: router registration is gone")
)

// Timestamp is a BSON timestamp: seconds<<32 | ordinal.
type Timestamp uint64

// BSON returns the timestamp in the driver's form.
func (t Timestamp) BSON() bson.Timestamp {
	return bson.Timestamp{T: uint32(t >> 32), I: uint32(t)}
}

// Shard is a replica set that holds data.
type Shard struct {
	ID           string // as in config.shards, e.g. "shard_0"
	Host         string // "set/host:port,host:port"
	Weight       float64
	Draining     bool
	Tags         []string
	TopologyTime Timestamp
	Version      string // server version found by the probe, e.g. "6.0.5"
	// Capabilities found by the probe, e.g. "prepareTransaction", "auth".
	Capabilities []string
	Added        Version // the catalog version that added it
}

// Placement says where new unsharded collections of a database go.
type Placement string

// The placements of DESIGN.md.
const (
	PlacementSpread   Placement = "spread"
	PlacementDatabase Placement = "database"
)

// Database is a row of config.databases.
type Database struct {
	Name        string
	Primary     string // shard id
	ClaimsShard string // see Claims; empty until the primary changes
	Placement   Placement
	UUID        uuid.UUID
	Timestamp   Timestamp
	LastMod     int32
}

// Claims is the shard that keeps the choices of single writes, by which a repeated one is
// known. It does not change with the primary: a router that does not know of that yet must
// find them all the same.
func (d *Database) Claims() string {
	if d.ClaimsShard != "" {
		return d.ClaimsShard
	}
	return d.Primary
}

// Kind tells sharded collections, unsharded ones and views apart.
type Kind string

// The kinds of namespaces.
const (
	KindUnsharded Kind = "unsharded"
	KindSharded   Kind = "sharded"
	KindView      Kind = "view"
)

// State says whether routers may use a collection.
type State string

// The states of a collection. While it is not open, routers hold operations on it
// back: a DDL operation or the switch of a movement is at work. What is fenced or held may
// be opened again; what is being dropped may not, as some shards may have nothing of it
// any more; nor may the two names of a rename, as some shards may have done it.
const (
	StateOpen State = "open"
	StateHeld State = "held" // writes are held back, reads go on
	// StateModifying: it is open, but shards may have other options than the row has.
	StateModifying State = "modifying"
	StateFenced    State = "fenced"
	StateDropping  State = "dropping"
	StateRenaming  State = "renaming" // it gets the name RenamedTo, or gives its own to one that does
)

// Collection is everything about one namespace but its chunks.
type Collection struct {
	NS         string // "db.coll"
	UUID       uuid.UUID
	Kind       Kind
	State      State
	Key        bson.Raw // shard key pattern; nil unless sharded
	Unique     bool
	Options    bson.Raw // options of create, as listCollections shows them; may be nil
	Collation  bson.Raw // default collation of the collection; nil means simple
	Pinned     bool     // an unsharded collection moved by hand stays where it is
	Group      string   // collections of one group move together
	Epoch      bson.ObjectID
	Timestamp  Timestamp // cluster time of this life of the collection
	LastMod    time.Time
	NoBalance  bool
	Migrations bool    // false: chunk moves are not allowed (setAllowMigrations)
	RenamedTo  string  // of a collection in StateRenaming: the namespace that it gets
	Version    Version // the last catalog version that changed this row or its chunks; set by the Store
}

// Owner is an entry of a chunk's history: who owned it since when.
type Owner struct {
	Shard      string
	ValidAfter Timestamp
}

// Chunk is a range [Min, Max) of shard-key values that one shard owns. An
// unsharded collection has exactly one, from {_id: MinKey} to {_id: MaxKey}.
type Chunk struct {
	ID       bson.ObjectID
	Min, Max bson.Raw // bound documents, with the key's field names
	// MinKey and MaxKey are the bounds in shardkey's order-preserving form.
	MinKey, MaxKey []byte
	Shard          string
	LastMod        Timestamp // major<<32 | minor
	OnShardSince   Timestamp
	History        []Owner // newest first
	Jumbo          bool
}

// CollectionChunks is a collection with all its chunks, ascending by MinKey.
type CollectionChunks struct {
	Collection
	Chunks []Chunk
}

// CollectionDelta is a collection whose row or chunks changed.
type CollectionDelta struct {
	CollectionChunks

	// Part: of the chunks only those are there that changed. They take the place of all
	// that lies in their ranges, which are those of whole chunks of before. Otherwise the
	// chunks are all there are.
	Part bool
}

// Delta is what changed in the catalog after some version.
type Delta struct {
	Version  Version // the version the delta leads to
	Timeline int64   // PostgreSQL timeline; 0 in memory or where it cannot be had
	Cluster  string  // the value of the setting ClusterIDSetting, in hex
	// Full: the delta holds everything, and what it does not name is gone. So it
	// is after version 0, and where the asked version is so old that the
	// deletions since are no longer on record.
	Full bool

	Shards          []Shard
	ShardsGone      []string
	Databases       []Database
	DatabasesGone   []string
	Collections     []CollectionDelta
	CollectionsGone []string
	Settings        []Setting
	SettingsGone    []string
	Movements       []Movement
	MovementsGone   []string // ids
}

// ClusterIDSetting is the setting that every catalog has from its first version
// on: {_id: "shardgate.clusterId", value: ObjectId}.
const ClusterIDSetting = "shardgate.clusterId"

// ClusterID returns the id that the document of ClusterIDSetting holds, in hex.
func ClusterID(doc bson.Raw) string {
	id, ok := doc.Lookup("value").ObjectIDOK()
	if !ok {
		return ""
	}
	return id.Hex()
}

// Setting is a document of config.settings (or an internal one, whose id begins
// with "shardgate.").
type Setting struct {
	ID  string
	Doc bson.Raw // with its _id
}

// LogEntry is a document of config.changelog or config.actionlog.
type LogEntry struct {
	ID      string
	Action  bool // true: actionlog
	Server  string
	Shard   string
	Client  string
	Time    time.Time
	What    string
	NS      string
	Details bson.Raw
}

// Expect is a precondition of a Change: the version that last changed a collection
// ("db.coll") or a database ("db"), 0 meaning that there must be none.
type Expect struct {
	NS      string
	Version Version
}

// ChunkEdit replaces some chunks of a collection by others that cover exactly
// the same ranges: a move, a split, a merge. It costs what it changes, where Put
// costs as much as the collection has chunks.
type ChunkEdit struct {
	NS     string
	Remove []bson.ObjectID
	Put    []Chunk
}

// Change is a set of mutations that a Store applies in one transaction, raising
// the version by one. All removals come first, so a name may be dropped and put
// in one Change. Puts insert or replace whole rows; removing what is not there
// is no error. Afterwards every chunk and primary must be on a known shard and
// every collection in a known database (else ErrConflict), and a collection must
// have the chunks that its Kind asks for (else ErrInvalid).
type Change struct {
	Locks         []Lock // must all still be held
	Expect        []Expect
	Put           []CollectionChunks // replaces the collection row and all its chunks
	Rows          []Collection       // replaces the collection row only (e.g. its State)
	Chunks        []ChunkEdit        // replaces some chunks and leaves the row
	Drop          []string           // collections with their chunks and zones
	Shards        []Shard            // Added is kept by the Store
	DropShards    []string
	Databases     []Database
	DropDatabases []string // with all their collections
	Settings      []Setting
	DropSettings  []string
	Movements     []Movement
	DropMovements []uuid.UUID
	Log           []LogEntry
}

// Lock excludes DDL and movements of one namespace or database from each other
// over all routers. The lock of a database ("db") excludes the locks of its
// collections ("db.coll") and the other way round; names that begin with "$"
// ("$shards") exclude only themselves.
type Lock struct {
	Name   string
	Router string // incarnation that holds it
	Token  int64  // fencing token, from the Store
	Why    string // e.g. the command, for currentOp and messages
}

// Router is a registered router process.
type Router struct {
	Incarnation string // unique per process start
	Name        string // stable: advertised host:port
	Number      int    // small, unique among living routers: top bits of cursor ids
	Version     string // program version
	Started     time.Time
	Ping        time.Time // last heartbeat, by the catalog's clock
	Ack         Ack
	Silent      bool // no heartbeat for longer than the Store's limit
	// Evicted: others shut it out. It acknowledges nothing, takes no lock and changes
	// nothing any more; Users are those by which it may still act.
	Evicted bool
	Users   []ShardUser
}

// Ack is what a router acknowledges: it begins nothing any more by a state older than
// Version, and has nothing older in flight, nor cursors, but on what is Held.
type Ack struct {
	Version Version
	Held    []Hold // by NS, each once
}

// Hold says that a router still runs operations on a namespace by an older state, or has
// cursors of one open.
type Hold struct {
	NS      string
	Version Version // the oldest state by which one runs; Stopped: none
	Writes  Version // the oldest by which one that writes runs; 0: none
	Cursors Version // the oldest by which a client's open cursor reads; 0: none
}

// ShardUser is a mongod user that a router made for itself on a shard, or that an
// incarnation which it replaced made and that is not certainly dropped yet: by that
// one the shard may still be written to. The password is never stored.
type ShardUser struct {
	Shard string
	User  string
}

// Registry knows the routers that live.
type Registry interface {
	// Register adds a router, ending an earlier incarnation of the same Name, and
	// returns the row with its Number, and the replaced incarnation's row (nil
	// if there was none), whose shard users the caller must drop: they are added to
	// the new row's, so that they are not forgotten if the caller dies. The locks of
	// the replaced incarnation are released. Number, Ping, Ack (zero) and Silent are
	// the Store's.
	Register(ctx context.Context, r Router) (self *Router, replaced *Router, err error)
	// Heartbeat refreshes the router's ping, acknowledges (the version never falls,
	// what is held is replaced) and records its shard users (nil: unchanged).
	// ErrEvicted when the row is gone, or the router evicted.
	Heartbeat(ctx context.Context, incarnation string, ack Ack, users []ShardUser) error
	// Deregister removes the router and its locks. The row of one that is evicted stays.
	Deregister(ctx context.Context, incarnation string) error
	// Routers lists all registered routers, by Number.
	Routers(ctx context.Context) ([]Router, error)
	// Evict begins to evict a router whose last heartbeat is still the one of the given
	// time (a Router's Ping); ErrConflict if it has beaten since. Its Users are final from
	// then on, and no Change goes by its locks. They stay, but see Break. One that is
	// evicted already, or not there, is no error; one without Users is removed.
	Evict(ctx context.Context, incarnation string, ping time.Time) error
	// ShutOut takes a user from the row of an evicted router: by it nothing can be done on
	// the shard any more, and nothing that was is unfinished there. With the last one the
	// row goes, and its locks.
	ShutOut(ctx context.Context, incarnation string, u ShardUser) error
}

// Locker gives out locks.
type Locker interface {
	// Acquire takes the lock called name, or ErrLocked at once, wrapped with a
	// text that says who holds it and why: whoever that is, the same incarnation
	// included. ErrEvicted when the incarnation is not registered, or evicted. A lock with a Token
	// beside an error may be held, its reply was lost: it must be released.
	Acquire(ctx context.Context, name, incarnation, why string) (Lock, error)
	// Release gives a lock back; releasing a lost lock is not an error.
	Release(ctx context.Context, l Lock) error
	// Break takes away the locks that exclude the one called name and whose holders are
	// evicted and shut out of all the given shards: of those that the locks concern.
	Break(ctx context.Context, name string, shards []string) error
}

// Store keeps the catalog. Implementations: catalog/pg and, for tests,
// catalog/mem; catalog/catalogtest holds the suite that both pass. All methods
// are safe for concurrent use and honour ctx; they return ErrUnavailable
// (wrapped) where the catalog cannot be reached, and ctx's own error where ctx
// ended first; in both cases a change may or may not have been made. Times are
// kept in milliseconds, as BSON has them. What is handed in or out is not shared.
type Store interface {
	Registry
	Locker

	// Load returns what changed after the given version (0: everything). A
	// catalog that went back answers with a Version below the given one.
	Load(ctx context.Context, after Version) (*Delta, error)
	// Apply makes a change in one transaction and returns the new version.
	// ErrLockLost, ErrConflict, ErrInvalid: nothing was changed.
	Apply(ctx context.Context, c Change) (Version, error)
	// Watch returns a channel that gets a value soon after the version rises, a
	// router acknowledges, joins or leaves, and once the watch is established (or
	// is again). It is a hint: it may coalesce, and values may be lost while the
	// catalog is away, so callers poll as well. The channel is closed when ctx
	// ends or the Store is closed.
	Watch(ctx context.Context) (<-chan struct{}, error)

	// Log returns the newest entries of the changelog or the actionlog, newest
	// last, at most limit. The Store forgets old entries.
	Log(ctx context.Context, action bool, limit int) ([]LogEntry, error)
	// Close releases everything; the Store may not be used afterwards.
	Close()
}
