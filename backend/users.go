package backend

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// routerRole is the role that every router's mongod user has. A user with anyAction
// on anyResource may name a client's session and advance the cluster time
// (MONGOD.md, "With auth on").
const routerRole = "shardgateRouter"

const (
	codeRoleExists   = 51002
	codeUserExists   = 51003
	codeUserNotFound = 11
)

var majority = bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: int32(10000)}}

// CreateUser makes a mongod user of this router's own on the shard, with a
// password that nobody else ever learns, and returns its login for SetCredential.
// Dropping that user later shuts the router out for certain (PROTOCOL.md F2, F5). Where
// shards run without auth it is no user.
func (s *Shard) CreateUser(ctx context.Context, name string) (Credential, error) {
	if s.cfg.Admin.None() {
		return Credential{}, nil
	}
	var secret [24]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return Credential{}, err
	}
	pwd := base64.RawURLEncoding.EncodeToString(secret[:])
	db := s.admin.Database("admin")
	err := db.RunCommand(ctx, bson.D{
		{Key: "createRole", Value: routerRole},
		{Key: "privileges", Value: bson.A{bson.D{
			{Key: "resource", Value: bson.D{{Key: "anyResource", Value: true}}},
			{Key: "actions", Value: bson.A{"anyAction"}},
		}}},
		{Key: "roles", Value: bson.A{}},
		{Key: "writeConcern", Value: majority},
	}).Err()
	if err != nil && !hasCode(err, codeRoleExists) {
		return Credential{}, fmt.Errorf("create role on %s: %w", s.ID, err)
	}
	user := func(command string) error {
		return db.RunCommand(ctx, bson.D{
			{Key: command, Value: name},
			{Key: "pwd", Value: pwd},
			{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: routerRole}, {Key: "db", Value: "admin"}}}},
			{Key: "mechanisms", Value: bson.A{"SCRAM-SHA-256"}},
			{Key: "writeConcern", Value: majority},
		}).Err()
	}
	err = user("createUser")
	if hasCode(err, codeUserExists) { // an earlier attempt's reply was lost
		err = user("updateUser")
	}
	if err != nil {
		return Credential{}, fmt.Errorf("create user on %s: %w", s.ID, err)
	}
	return Credential{User: name, Password: pwd, Source: "admin"}, nil
}

// DropUser drops a router's user, w:majority; one that is not there is no error.
func (s *Shard) DropUser(ctx context.Context, name string) error {
	if s.cfg.Admin.None() {
		return nil
	}
	err := s.admin.Database("admin").RunCommand(ctx, bson.D{
		{Key: "dropUser", Value: name}, {Key: "writeConcern", Value: majority},
	}).Err()
	if err != nil && !hasCode(err, codeUserNotFound) {
		return fmt.Errorf("drop user on %s: %w", s.ID, err)
	}
	return nil
}

func hasCode(err error, code int32) bool {
	var ce mongo.CommandError
	return errors.As(err, &ce) && ce.HasErrorCode(int(code))
}
