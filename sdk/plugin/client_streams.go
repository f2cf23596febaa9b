// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// errNoEnd is a stream that stopped before it said that it was whole.
var errNoEnd = errors.New("the stream ended before its end was said")

// receive hands each message of a stream to each, until that says that it was
// the last one. An error of each is the caller's own and is returned as it
// is; the call is then broken off.
func receive[Resp any](ctx context.Context, c *client, call string,
	stream interface{ Recv() (*Resp, error) }, each func(*Resp) (last bool, err error)) error {
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nonsense(c.opts.Name, call, errNoEnd)
		}
		if err != nil {
			return c.fail(ctx, call, err)
		}
		if last, err := each(message); last || err != nil {
			return err
		}
	}
}

// stream makes one call whose answer is a stream.
func stream[Req, Resp any](ctx context.Context, c *client, call string,
	open func(context.Context, *Req, ...grpc.CallOption) (grpc.ServerStreamingClient[Resp], error),
	req *Req, each func(*Resp) (last bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("extension %s: %s: %w", c.opts.Name, call, context.Cause(ctx))
	}
	wire, end := c.begin(ctx)
	defer end()
	s, err := open(wire, req)
	if err != nil {
		return c.fail(ctx, call, err)
	}
	return receive(ctx, c, call, s, each)
}

// announce names the secrets of a call to a host that masks them.
func (c *client) announce(secrets map[string]sdk.Secret) {
	if c.opts.Secret == nil {
		return
	}
	for _, secret := range secrets {
		c.opts.Secret(string(secret))
	}
}

// tell hands a step of progress to a caller that listens.
func tell(progress func(sdk.Progress), p *pb.Progress) {
	if progress != nil && p != nil {
		progress(decodeProgress(p))
	}
}

func (c *client) Create(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
	options, err := encodeCreate(opts)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	c.announce(opts.Secrets)
	var result sdk.CreateResult
	d := new(decoder)
	err = stream(ctx, c, "Create", c.wire.Create, &pb.CreateRequest{Options: options, Progress: opts.Progress != nil},
		func(message *pb.CreateResponse) (bool, error) {
			tell(opts.Progress, message.GetProgress())
			if message.GetSandbox() == nil {
				return false, nil
			}
			result.Sandbox = d.sandbox(message.GetSandbox())
			return true, nil
		})
	if err != nil {
		return sdk.CreateResult{}, err
	}
	return checked(c, "Create", d, result)
}

func (c *client) Restore(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
	options, err := encodeCreate(opts.Create)
	if err != nil {
		return sdk.CreateResult{}, err
	}
	c.announce(opts.Create.Secrets)
	var result sdk.CreateResult
	d := new(decoder)
	err = stream(ctx, c, "Restore", c.wire.Restore,
		&pb.RestoreRequest{SnapshotId: opts.SnapshotID, Options: options, Progress: opts.Create.Progress != nil},
		func(message *pb.RestoreResponse) (bool, error) {
			tell(opts.Create.Progress, message.GetProgress())
			if message.GetSandbox() == nil {
				return false, nil
			}
			result.Sandbox = d.sandbox(message.GetSandbox())
			return true, nil
		})
	if err != nil {
		return sdk.CreateResult{}, err
	}
	return checked(c, "Restore", d, result)
}

func (c *client) Prepare(ctx context.Context, opts sdk.PrepareOptions) (sdk.PrepareResult, error) {
	profile, err := encodeDocument("profile", opts.Profile)
	if err != nil {
		return sdk.PrepareResult{}, err
	}
	var result sdk.PrepareResult
	err = stream(ctx, c, "Prepare", c.wire.Prepare, &pb.PrepareRequest{ProfileJson: profile, Progress: opts.Progress != nil},
		func(message *pb.PrepareResponse) (bool, error) {
			tell(opts.Progress, message.GetProgress())
			result.ImageDigest = message.GetEnd().GetImageDigest()
			return message.GetEnd() != nil, nil
		})
	return result, err
}

func (c *client) Snapshot(ctx context.Context, opts sdk.SnapshotOptions) (sdk.SnapshotResult, error) {
	identity, err := encodeDocument("identity", opts.Identity)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	var result sdk.SnapshotResult
	d := new(decoder)
	err = stream(ctx, c, "Snapshot", c.wire.Snapshot, &pb.SnapshotRequest{
		Target: encodeTarget(opts.Target), SnapshotId: opts.SnapshotID, Kind: string(opts.Kind), ExpiresAt: encodeTime(opts.ExpiresAt),
		IdentityJson: identity, Event: encodeEvent(opts.Event), Progress: opts.Progress != nil,
	}, func(message *pb.SnapshotResponse) (bool, error) {
		tell(opts.Progress, message.GetProgress())
		if message.GetSnapshot() == nil {
			return false, nil
		}
		result.Snapshot = d.snapshot(message.GetSnapshot())
		return true, nil
	})
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	return checked(c, "Snapshot", d, result)
}

// listing bounds what a listing may hold.
type listing struct{ items, bytes int }

func (l *listing) add(item proto.Message) error {
	l.items++
	l.bytes += proto.Size(item)
	if l.items > maxItems || l.bytes > maxListing {
		return fmt.Errorf("more than %d items or %d bytes", maxItems, maxListing)
	}
	return nil
}

// List leaves out what it can't read and calls the listing incomplete, so
// that one broken record does not hide all others.
func (c *client) List(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
	var result sdk.ListResult
	var bound listing
	unreadable := ""
	err := stream(ctx, c, "List", c.wire.List, &pb.ListRequest{Fleet: opts.Fleet}, func(message *pb.ListResponse) (bool, error) {
		if item := message.GetSandbox(); item != nil {
			if err := bound.add(item); err != nil {
				return false, nonsense(c.opts.Name, "List", err)
			}
			d := new(decoder)
			if sandbox := d.sandbox(item); d.err == nil {
				result.Sandboxes = append(result.Sandboxes, sandbox)
			} else {
				unreadable = cut(join(unreadable, fmt.Sprintf("sandbox %.64q: %v", item.GetId(), d.err)))
			}
		}
		result.Incomplete = cut(message.GetEnd().GetIncomplete())
		result.Unreadable = message.GetEnd().GetUnreadable()
		return message.GetEnd() != nil, nil
	})
	if err != nil {
		return sdk.ListResult{}, err
	}
	if len(result.Unreadable) > maxItems {
		return sdk.ListResult{}, nonsense(c.opts.Name, "List", fmt.Errorf("%d unreadable ids, at most %d are allowed", len(result.Unreadable), maxItems))
	}
	if unreadable != "" {
		result.Incomplete = join(result.Incomplete, unreadable)
	}
	return result, nil
}

// ListSnapshots treats unreadable records as List does.
func (c *client) ListSnapshots(ctx context.Context, opts sdk.ListSnapshotsOptions) (sdk.ListSnapshotsResult, error) {
	var result sdk.ListSnapshotsResult
	var bound listing
	unreadable := ""
	err := stream(ctx, c, "ListSnapshots", c.wire.ListSnapshots, &pb.ListSnapshotsRequest{Fleet: opts.Fleet},
		func(message *pb.ListSnapshotsResponse) (bool, error) {
			if item := message.GetSnapshot(); item != nil {
				if err := bound.add(item); err != nil {
					return false, nonsense(c.opts.Name, "ListSnapshots", err)
				}
				d := new(decoder)
				if snapshot := d.snapshot(item); d.err == nil {
					result.Snapshots = append(result.Snapshots, snapshot)
				} else {
					unreadable = cut(join(unreadable, fmt.Sprintf("snapshot %.64q: %v", item.GetId(), d.err)))
				}
			}
			result.Incomplete = cut(message.GetEnd().GetIncomplete())
			return message.GetEnd() != nil, nil
		})
	if err != nil {
		return sdk.ListSnapshotsResult{}, err
	}
	if unreadable != "" {
		result.Incomplete = join(result.Incomplete, unreadable)
	}
	return result, nil
}

// writeFrame writes one frame of the extension to a writer of the caller.
func (c *client) writeFrame(call string, w io.Writer, frame []byte) error {
	if len(frame) > chunkSize {
		return nonsense(c.opts.Name, call, fmt.Errorf("a frame of %d bytes, at most %d are allowed", len(frame), chunkSize))
	}
	if len(frame) == 0 || w == nil {
		return nil
	}
	_, err := w.Write(frame)
	return err
}

// counted reads the extension's own count of what it moved.
func (c *client) counted(call string, n int64) (int64, error) {
	d := new(decoder)
	return checked(c, call, d, d.count("bytes", n))
}

func (c *client) CopyOut(ctx context.Context, opts sdk.CopyOutOptions) (sdk.CopyOutResult, error) {
	if err := validText("path", opts.Path); err != nil {
		return sdk.CopyOutResult{}, err
	}
	var bytes int64
	err := stream(ctx, c, "CopyOut", c.wire.CopyOut, &pb.CopyOutRequest{Target: encodeTarget(opts.Target), Path: opts.Path},
		func(message *pb.CopyOutResponse) (bool, error) {
			bytes = message.GetEnd().GetBytes()
			return message.GetEnd() != nil, c.writeFrame("CopyOut", opts.Archive, message.GetData())
		})
	if err != nil {
		return sdk.CopyOutResult{}, err
	}
	bytes, err = c.counted("CopyOut", bytes)
	return sdk.CopyOutResult{Bytes: bytes}, err
}

func (c *client) Logs(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
	var bytes int64
	err := stream(ctx, c, "Logs", c.wire.Logs, &pb.LogsRequest{Target: encodeTarget(opts.Target), Source: string(opts.Source), Follow: opts.Follow, Tail: int64(opts.Tail)},
		func(message *pb.LogsResponse) (bool, error) {
			bytes = message.GetEnd().GetBytes()
			return message.GetEnd() != nil, c.writeFrame("Logs", opts.Output, message.GetData())
		})
	if err != nil {
		return sdk.LogsResult{}, err
	}
	bytes, err = c.counted("Logs", bytes)
	return sdk.LogsResult{Bytes: bytes}, err
}
