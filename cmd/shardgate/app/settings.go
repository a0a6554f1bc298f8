package app

import (
	"time"

	"github.com/go-viper/mapstructure/v2"
	"go.yaml.in/yaml/v3"
)

// settings is the configuration as a YAML tree with the file's own key names, its
// secrets hidden.
func settings(c *Config) *yaml.Node {
	shown := *c
	shown.Catalog.DSN = hidePassword(c.Catalog.DSN)
	shown.Catalog.DirectDSN = hidePassword(c.Catalog.DirectDSN)
	tree := map[string]any{} // map[string]any: what mapstructure decodes into
	if err := mapstructure.Decode(shown, &tree); err != nil {
		return &yaml.Node{Kind: yaml.ScalarNode, Value: err.Error()}
	}
	plainDurations(tree)
	var n yaml.Node
	if err := n.Encode(tree); err != nil {
		return &yaml.Node{Kind: yaml.ScalarNode, Value: err.Error()}
	}
	return &n
}

// plainDurations writes durations as they are read: "10s".
func plainDurations(tree map[string]any) { // map[string]any: see settings
	for k, v := range tree {
		switch v := v.(type) {
		case time.Duration:
			tree[k] = v.String()
		case map[string]any: // map[string]any: see settings
			plainDurations(v)
		}
	}
}
