package commands

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// balancerStatus: there is no balancer yet, so it is off, whatever the setting says.
func balancerStatus(_ context.Context, req *request) error {
	req.Reply.String("mode", "off")
	req.Reply.Bool("inBalancerRound", false)
	req.Reply.Int64("numBalancerRounds", 0)
	req.Reply.OK()
	return nil
}

// setBalancer is balancerStart and balancerStop. The setting is kept, as shells and tools
// read it.
func setBalancer(ctx context.Context, req *request) error {
	if err := req.known(); err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	if err := req.h.router.SetBalancer(ctx, req.row.Name == "balancerStart"); err != nil {
		return err
	}
	req.Reply.OK()
	return nil
}

func balancerCollectionStatus(ctx context.Context, req *request) error {
	ns, err := req.anyNamespace()
	if err != nil {
		return err
	}
	if err := req.known(); err != nil {
		return err
	}
	ctx, cancel := req.Context(ctx)
	defer cancel()
	why, size, err := req.h.router.Violation(ctx, ns)
	if err != nil {
		return err
	}
	reply := bson.D{{Key: "chunkSize", Value: int32(size)}, {Key: "balancerCompliant", Value: why == ""}}
	if why != "" {
		reply = append(reply, bson.E{Key: "firstComplianceViolation", Value: why})
	}
	return req.document(reply)
}
