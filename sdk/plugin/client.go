// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// ConnectOptions are the options of [Connect].
type ConnectOptions struct {
	// Name is the extension's name, for messages.
	Name string
	// Broken, when set, is asked what became of the extension when a call
	// ended because its connection did: an error that says so, wrapping
	// [sdk.ErrCrashed], or nil when the process is well. It may wait for a
	// moment, within the context.
	Broken func(ctx context.Context, call string) error
	// Secret, when set, is told each secret value before it is sent, so that
	// the host can mask it in the extension's log.
	Secret func(value string)
	// CancelGrace is how long a cancelled call may go on before its answer
	// is no longer waited for. Zero is five seconds.
	CancelGrace time.Duration
}

// Connect returns the extension at the other end of a connection. It asks
// the extension to describe itself; [sdk.As] finds the optional interfaces of
// package sdk that the extension announced and no others.
//
// A cancelled call still waits, for a bounded time, for the extension's
// answer: it may have acted. Exec may go on to read from Stdin until its next
// Read returns, as os/exec does.
func Connect(ctx context.Context, conn grpc.ClientConnInterface, opts ConnectOptions) (sdk.Extension, error) {
	if opts.CancelGrace <= 0 {
		opts.CancelGrace = cancelGrace
	}
	c := &client{wire: pb.NewExtensionClient(conn), opts: opts}
	if err := c.describe(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// client is the host's side of the wire.
type client struct {
	wire        pb.ExtensionClient
	opts        ConnectOptions
	description sdk.DescribeResult
	abilities   abilitySet
	calls       atomic.Uint64
}

// begin returns the context of one call on the wire and what ends it. The
// context is not the caller's: when that one ends, the extension is asked to
// end the call and its answer is waited for, for as long as grace allows.
func (c *client) begin(ctx context.Context) (context.Context, context.CancelFunc) {
	name := strconv.FormatUint(c.calls.Add(1), 10)
	pairs := []string{callKey, name}
	deadline, hasDeadline := ctx.Deadline()
	if hasDeadline {
		pairs = append(pairs, timeoutKey, time.Until(deadline).String())
	}
	call, breakOff := context.WithCancel(metadata.AppendToOutgoingContext(context.WithoutCancel(ctx), pairs...))
	unwatch := context.AfterFunc(ctx, func() {
		defer breakOff()
		grace, stop := context.WithTimeout(call, c.opts.CancelGrace)
		defer stop()
		// An extension sees a deadline by its own clock, as a deadline.
		for !hasDeadline || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			resp, err := c.wire.Cancel(grace, &pb.CancelRequest{Call: name})
			if err != nil {
				return
			}
			if resp.GetFound() {
				break
			}
			// The call is on its way there, or its answer on its way here.
			select {
			case <-grace.Done():
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
		<-grace.Done()
	})
	return call, func() { unwatch(); breakOff() }
}

// fail turns the end of a call into the error that the caller sees.
func (c *client) fail(ctx context.Context, call string, err error) error {
	s, isStatus := status.FromError(err)
	if isStatus {
		if failure := failureOf(s); failure != nil {
			return decodeFailure(failure)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("extension %s: %s: %w", c.opts.Name, call, context.Cause(ctx))
	}
	// A connection that the host has closed since says Canceled.
	lost := isStatus && (s.Code() == codes.Unavailable || s.Code() == codes.Canceled)
	if lost && c.opts.Broken != nil {
		if broken := c.opts.Broken(ctx, call); broken != nil {
			return broken
		}
	}
	switch {
	case !isStatus:
		return fmt.Errorf("extension %s: %s: %w", c.opts.Name, call, err)
	case lost:
		return &sdk.Error{Kind: sdk.ErrUnreachable, Message: fmt.Sprintf("the connection to extension %s broke during %s", c.opts.Name, call), Err: errors.New(cut(s.Message()))}
	case s.Code() == codes.Unimplemented:
		return sdk.Unsupported("", "extension %s does not know the call %s: it may be older than this program", c.opts.Name, call)
	case s.Code() == codes.ResourceExhausted:
		return nonsense(c.opts.Name, call, fmt.Errorf("%s (the bound is %d bytes)", cut(s.Message()), maxMessage))
	default:
		return nonsense(c.opts.Name, call, errors.New(cut(s.Message())))
	}
}

// unary makes one call with one answer.
func unary[Req, Resp any](ctx context.Context, c *client, name string,
	call func(context.Context, *Req, ...grpc.CallOption) (*Resp, error), req *Req) (*Resp, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("extension %s: %s: %w", c.opts.Name, name, context.Cause(ctx))
	}
	wire, end := c.begin(ctx)
	defer end()
	resp, err := call(wire, req)
	if err != nil {
		return nil, c.fail(ctx, name, err)
	}
	return resp, nil
}

// checked returns a decoded result, or what was wrong with it.
func checked[T any](c *client, call string, d *decoder, result T) (T, error) {
	if d.err != nil {
		var none T
		return none, nonsense(c.opts.Name, call, d.err)
	}
	return result, nil
}

// describe fetches the description and the abilities.
func (c *client) describe(ctx context.Context) error {
	resp, err := unary(ctx, c, "Describe", c.wire.Describe, &pb.DescribeRequest{})
	if err != nil {
		return err
	}
	d := new(decoder)
	d.entries("config_keys", len(resp.GetConfigKeys()))
	d.entries("abilities", len(resp.GetAbilities()))
	c.description = sdk.DescribeResult{
		Name: d.required("name", resp.GetName()), Version: cut(resp.GetVersion()), Summary: cut(resp.GetSummary()),
		Capabilities: d.capabilities(resp.GetCapabilities()),
	}
	for _, key := range resp.GetConfigKeys() {
		c.description.ConfigSchema = append(c.description.ConfigSchema, sdk.ConfigKey{
			Name: key.GetName(), Type: key.GetType(), Description: cut(key.GetDescription()),
			Required: key.GetRequired(), Sensitive: key.GetSensitive(),
		})
	}
	if d.err != nil {
		return nonsense(c.opts.Name, "Describe", d.err)
	}
	for _, name := range resp.GetAbilities() {
		c.abilities |= abilities[name].bit
	}
	return nil
}

// Describe answers from what the extension said when it was connected: the
// contract makes it static.
func (c *client) Describe(context.Context, sdk.DescribeOptions) (sdk.DescribeResult, error) {
	return c.description, nil
}

func (c *client) Configure(ctx context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
	_, err := unary(ctx, c, "Configure", c.wire.Configure, &pb.ConfigureRequest{
		Backend: opts.Backend, Fleet: opts.Fleet, ConfigJson: opts.Config,
	})
	return sdk.ConfigureResult{}, err
}

func (c *client) Probe(ctx context.Context, _ sdk.ProbeOptions) (sdk.ProbeResult, error) {
	resp, err := unary(ctx, c, "Probe", c.wire.Probe, &pb.ProbeRequest{})
	if err != nil {
		return sdk.ProbeResult{}, err
	}
	d := new(decoder)
	d.entries("details", len(resp.GetDetails()))
	result := sdk.ProbeResult{
		Usable: resp.GetUsable(), Reason: cut(resp.GetReason()), Advice: cut(resp.GetAdvice()),
		Capabilities: d.capabilities(resp.GetCapabilities()), Instance: cut(resp.GetInstance()),
	}
	for _, detail := range resp.GetDetails() {
		result.Details = append(result.Details, sdk.Detail{Name: cut(detail.GetName()), Value: cut(detail.GetValue())})
	}
	return checked(c, "Probe", d, result)
}

func (c *client) Get(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
	resp, err := unary(ctx, c, "Get", c.wire.Get, &pb.GetRequest{Target: encodeTarget(opts.Target)})
	if err != nil {
		return sdk.GetResult{}, err
	}
	d := new(decoder)
	return checked(c, "Get", d, sdk.GetResult{Sandbox: d.sandbox(resp.GetSandbox())})
}

func (c *client) Extend(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
	resp, err := unary(ctx, c, "Extend", c.wire.Extend, &pb.ExtendRequest{
		Target: encodeTarget(opts.Target), Generation: opts.Generation, ExpiresAt: encodeTime(opts.ExpiresAt), Event: encodeEvent(opts.Event),
	})
	if err != nil {
		return sdk.ExtendResult{}, err
	}
	d := new(decoder)
	return checked(c, "Extend", d, sdk.ExtendResult{Lease: d.grantedLease(resp.GetLease())})
}

func (c *client) Expire(ctx context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error) {
	resp, err := unary(ctx, c, "Expire", c.wire.Expire, &pb.ExpireRequest{
		Target: encodeTarget(opts.Target), Generation: opts.Generation, ExpiresAt: encodeTime(opts.ExpiresAt), Event: encodeEvent(opts.Event),
	})
	if err != nil {
		return sdk.ExpireResult{}, err
	}
	d := new(decoder)
	return checked(c, "Expire", d, sdk.ExpireResult{Lease: d.grantedLease(resp.GetLease())})
}

func (c *client) Claim(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
	resp, err := unary(ctx, c, "Claim", c.wire.Claim, &pb.ClaimRequest{
		Target: encodeTarget(opts.Target), Generation: opts.Generation, Holder: opts.Holder, OnlyExpired: opts.OnlyExpired, Event: encodeEvent(opts.Event),
	})
	if err != nil {
		return sdk.ClaimResult{}, err
	}
	d := new(decoder)
	return checked(c, "Claim", d, sdk.ClaimResult{Lease: d.grantedLease(resp.GetLease())})
}

func (c *client) Destroy(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
	resp, err := unary(ctx, c, "Destroy", c.wire.Destroy, &pb.DestroyRequest{Target: encodeTarget(opts.Target)})
	if err != nil {
		return sdk.DestroyResult{}, err
	}
	d := new(decoder)
	d.entries("removed", len(resp.GetRemoved()))
	d.entries("leftovers", len(resp.GetLeftovers()))
	result := sdk.DestroyResult{Existed: resp.GetExisted(), Removed: resp.GetRemoved(), Leftovers: resp.GetLeftovers()}
	if resp.GetFailure() != nil {
		return result, decodeFailure(resp.GetFailure())
	}
	return checked(c, "Destroy", d, result)
}

func (c *client) Pause(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
	resp, err := unary(ctx, c, "Pause", c.wire.Pause, &pb.PauseRequest{Target: encodeTarget(opts.Target)})
	if err != nil {
		return sdk.PauseResult{}, err
	}
	d := new(decoder)
	return checked(c, "Pause", d, sdk.PauseResult{Sandbox: d.sandbox(resp.GetSandbox())})
}

func (c *client) Resume(ctx context.Context, opts sdk.ResumeOptions) (sdk.ResumeResult, error) {
	resp, err := unary(ctx, c, "Resume", c.wire.Resume, &pb.ResumeRequest{Target: encodeTarget(opts.Target)})
	if err != nil {
		return sdk.ResumeResult{}, err
	}
	d := new(decoder)
	return checked(c, "Resume", d, sdk.ResumeResult{Sandbox: d.sandbox(resp.GetSandbox())})
}

func (c *client) GetSnapshot(ctx context.Context, opts sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	resp, err := unary(ctx, c, "GetSnapshot", c.wire.GetSnapshot, &pb.GetSnapshotRequest{SnapshotId: opts.SnapshotID, Fleet: opts.Fleet})
	if err != nil {
		return sdk.GetSnapshotResult{}, err
	}
	d := new(decoder)
	return checked(c, "GetSnapshot", d, sdk.GetSnapshotResult{Snapshot: d.snapshot(resp.GetSnapshot())})
}

func (c *client) ExtendSnapshot(ctx context.Context, opts sdk.ExtendSnapshotOptions) (sdk.ExtendSnapshotResult, error) {
	resp, err := unary(ctx, c, "ExtendSnapshot", c.wire.ExtendSnapshot, &pb.ExtendSnapshotRequest{
		SnapshotId: opts.SnapshotID, Fleet: opts.Fleet, ExpiresAt: encodeTime(opts.ExpiresAt),
	})
	if err != nil {
		return sdk.ExtendSnapshotResult{}, err
	}
	d := new(decoder)
	return checked(c, "ExtendSnapshot", d, sdk.ExtendSnapshotResult{Snapshot: d.snapshot(resp.GetSnapshot())})
}

func (c *client) DeleteSnapshot(ctx context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	resp, err := unary(ctx, c, "DeleteSnapshot", c.wire.DeleteSnapshot, &pb.DeleteSnapshotRequest{SnapshotId: opts.SnapshotID, Fleet: opts.Fleet})
	if err != nil {
		return sdk.DeleteSnapshotResult{}, err
	}
	return sdk.DeleteSnapshotResult{Existed: resp.GetExisted()}, nil
}
