// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

func (c *client) ExportSnapshot(ctx context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error) {
	var result sdk.ExportSnapshotResult
	d := new(decoder)
	err := stream(ctx, c, "ExportSnapshot", c.wire.ExportSnapshot,
		&pb.ExportSnapshotRequest{SnapshotId: opts.SnapshotID, Fleet: opts.Fleet, Progress: opts.Progress != nil},
		func(message *pb.ExportSnapshotResponse) (bool, error) {
			tell(opts.Progress, message.GetProgress())
			if err := c.writeFrame("ExportSnapshot", opts.Archive, message.GetData()); err != nil {
				return false, fmt.Errorf("writing the archive: %w", err)
			}
			end := message.GetEnd()
			if end == nil {
				return false, nil
			}
			result = sdk.ExportSnapshotResult{Bytes: d.count("bytes", end.GetBytes()), Digest: end.GetDigest(), Losses: d.losses(end.GetLosses())}
			return true, nil
		})
	if err != nil {
		return sdk.ExportSnapshotResult{}, err
	}
	return checked(c, "ExportSnapshot", d, result)
}

func (c *client) ImportSnapshot(ctx context.Context, opts sdk.ImportSnapshotOptions) (sdk.ImportSnapshotResult, error) {
	if err := ctx.Err(); err != nil {
		return sdk.ImportSnapshotResult{}, fmt.Errorf("extension %s: ImportSnapshot: %w", c.opts.Name, context.Cause(ctx))
	}
	identity, err := encodeDocument("identity", opts.Identity)
	if err != nil {
		return sdk.ImportSnapshotResult{}, err
	}
	wire, end := c.begin(ctx)
	defer end()
	s, err := c.wire.ImportSnapshot(wire)
	if err != nil {
		return sdk.ImportSnapshotResult{}, c.fail(ctx, "ImportSnapshot", err)
	}
	// An error of Send says only that there is an answer to read.
	_ = s.Send(&pb.ImportSnapshotRequest{Message: &pb.ImportSnapshotRequest_Start{Start: &pb.ImportStart{
		SnapshotId: opts.SnapshotID, ExpiresAt: encodeTime(opts.ExpiresAt), IdentityJson: identity, Event: encodeEvent(opts.Event), Progress: opts.Progress != nil,
	}}})
	input := make(chan error, 1)
	go feed(opts.Archive, input, func(frame []byte) error {
		return s.Send(&pb.ImportSnapshotRequest{Message: &pb.ImportSnapshotRequest_Data{Data: frame}})
	}, func(end *pb.InputEnd) error {
		return errors.Join(s.Send(&pb.ImportSnapshotRequest{Message: &pb.ImportSnapshotRequest_End{End: end}}), s.CloseSend())
	})
	var result sdk.ImportSnapshotResult
	d := new(decoder)
	err = receive(ctx, c, "ImportSnapshot", s, func(message *pb.ImportSnapshotResponse) (bool, error) {
		tell(opts.Progress, message.GetProgress())
		end := message.GetEnd()
		if end == nil {
			return false, nil
		}
		result = sdk.ImportSnapshotResult{Snapshot: d.snapshot(end.GetSnapshot()), Losses: d.losses(end.GetLosses())}
		return true, nil
	})
	select {
	case readErr := <-input:
		return sdk.ImportSnapshotResult{}, fmt.Errorf("reading the archive: %w", readErr)
	default:
	}
	if err != nil {
		return sdk.ImportSnapshotResult{}, err
	}
	return checked(c, "ImportSnapshot", d, result)
}

// losses reads a loss report.
func (d *decoder) losses(list []*pb.Loss) []sdk.Loss {
	d.entries("losses", len(list))
	var out []sdk.Loss
	for _, l := range list {
		d.entries("losses.paths", len(l.GetPaths()))
		out = append(out, sdk.Loss{
			Kind: sdk.LossKind(d.required("losses.kind", l.GetKind())), Detail: cut(l.GetDetail()), Count: d.count("losses.count", l.GetCount()), Paths: l.GetPaths(),
		})
	}
	return out
}

func encodeLosses(list []sdk.Loss) []*pb.Loss {
	out := make([]*pb.Loss, len(list))
	for i, l := range list {
		out[i] = &pb.Loss{Kind: string(l.Kind), Detail: encodeText(l.Detail), Count: l.Count, Paths: encodeTexts(l.Paths)}
	}
	return out
}
