package cluster

import (
	"errors"
	"fmt"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/parts"
)

// Defaults of a new cluster.
const (
	DefaultShards  = 3
	DefaultMembers = 1
)

// Options of [Start].
type Options struct {
	Shards  int // replica sets, 0 for what Data holds, else 3
	Members int // mongods of each, 0 for what Data holds, else 1
	Routers int // router processes, may be 0
	Port    int // of the first router, 0 for any free one

	Data   string // folder that is kept, "" for a temporary one
	Binary string // the shardgate program, needed when Routers is not 0

	Parts    *parts.Finder     // where programs come from, nil for the machine or the user's cache folder
	Progress func(line string) // told what happens, may be nil

	MongodArgs   []string // added to every mongod's command line
	PostgresArgs []string // added to PostgreSQL's command line
	RouterEnv    []string // added to every router's environment
}

// check reports impossible values and fills in what may be left out.
func (o *Options) check() error {
	switch {
	case o.Shards < 0 || o.Shards > 100:
		return fmt.Errorf("shards: %d is not between 1 and 100", o.Shards)
	case o.Members < 0 || o.Members > 7:
		return fmt.Errorf("members: %d is not between 1 and 7, the voting members of a replica set", o.Members)
	case o.Routers < 0 || o.Routers > 100:
		return fmt.Errorf("routers: %d is not between 0 and 100", o.Routers)
	case o.Port < 0 || o.Port > 65535:
		return fmt.Errorf("port: %d is not between 0 and 65535", o.Port)
	case o.Routers > 0 && o.Binary == "":
		return errors.New("routers need the path of the shardgate program")
	}

	if o.Progress == nil {
		o.Progress = func(string) {}
	}

	if o.Parts == nil {
		finder, err := parts.New(parts.Options{Progress: o.Progress})
		if err != nil {
			return err
		}

		o.Parts = finder
	}

	return nil
}
