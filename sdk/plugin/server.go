// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// server is the extension's side of the wire: it decodes, calls the
// extension and encodes. Errors are turned into statuses by [calls].
type server struct {
	pb.UnimplementedExtensionServer
	ext   sdk.Extension
	calls *calls
}

// invalid refuses a request that can't be.
func invalid(err error) error { return sdk.Invalid("", "the request can't be used: %v", err) }

func (s *server) Cancel(_ context.Context, req *pb.CancelRequest) (*pb.CancelResponse, error) {
	return &pb.CancelResponse{Found: s.calls.cancel(req.GetCall())}, nil
}

func (s *server) Describe(ctx context.Context, _ *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	result, err := s.ext.Describe(ctx, sdk.DescribeOptions{})
	if err != nil {
		return nil, err
	}
	resp := &pb.DescribeResponse{
		Name: result.Name, Version: result.Version, Summary: encodeText(result.Summary),
		Capabilities: encodeCapabilities(result.Capabilities),
	}
	for _, key := range result.ConfigSchema {
		resp.ConfigKeys = append(resp.ConfigKeys, &pb.ConfigKey{
			Name: key.Name, Type: key.Type, Description: encodeText(key.Description), Required: key.Required, Sensitive: key.Sensitive,
		})
	}
	for name, ability := range abilities {
		if ability.has(s.ext) {
			resp.Abilities = append(resp.Abilities, name)
		}
	}
	return resp, nil
}

func (s *server) Configure(ctx context.Context, req *pb.ConfigureRequest) (*pb.ConfigureResponse, error) {
	_, err := s.ext.Configure(ctx, sdk.ConfigureOptions{Backend: req.GetBackend(), Fleet: req.GetFleet(), Config: req.GetConfigJson()})
	return &pb.ConfigureResponse{}, err
}

func (s *server) Probe(ctx context.Context, _ *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	result, err := s.ext.Probe(ctx, sdk.ProbeOptions{})
	if err != nil {
		return nil, err
	}
	resp := &pb.ProbeResponse{
		Usable: result.Usable, Reason: encodeText(result.Reason), Advice: encodeText(result.Advice),
		Capabilities: encodeCapabilities(result.Capabilities), Instance: encodeText(result.Instance),
	}
	for _, detail := range result.Details {
		resp.Details = append(resp.Details, &pb.Detail{Name: encodeText(detail.Name), Value: encodeText(detail.Value)})
	}
	return resp, nil
}

func (s *server) Get(ctx context.Context, req *pb.GetRequest) (*pb.GetResponse, error) {
	result, err := s.ext.Get(ctx, sdk.GetOptions{Target: decodeTarget(req.GetTarget())})
	if err != nil {
		return nil, err
	}
	sandbox, err := encodeSandbox(result.Sandbox)
	return &pb.GetResponse{Sandbox: sandbox}, err
}

func (s *server) Extend(ctx context.Context, req *pb.ExtendRequest) (*pb.ExtendResponse, error) {
	d := new(decoder)
	opts := sdk.ExtendOptions{
		Target: decodeTarget(req.GetTarget()), Generation: req.GetGeneration(),
		ExpiresAt: d.time("expires_at", req.GetExpiresAt()), Event: d.event(req.GetEvent()),
	}
	if d.err != nil {
		return nil, invalid(d.err)
	}
	result, err := s.ext.Extend(ctx, opts)
	return &pb.ExtendResponse{Lease: encodeLease(result.Lease)}, err
}

func (s *server) Expire(ctx context.Context, req *pb.ExpireRequest) (*pb.ExpireResponse, error) {
	d := new(decoder)
	opts := sdk.ExpireOptions{
		Target: decodeTarget(req.GetTarget()), Generation: req.GetGeneration(),
		ExpiresAt: d.time("expires_at", req.GetExpiresAt()), Event: d.event(req.GetEvent()),
	}
	if d.err != nil {
		return nil, invalid(d.err)
	}
	result, err := s.ext.Expire(ctx, opts)
	return &pb.ExpireResponse{Lease: encodeLease(result.Lease)}, err
}

func (s *server) Claim(ctx context.Context, req *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	d := new(decoder)
	opts := sdk.ClaimOptions{
		Target: decodeTarget(req.GetTarget()), Generation: req.GetGeneration(), Holder: req.GetHolder(),
		OnlyExpired: req.GetOnlyExpired(), Event: d.event(req.GetEvent()),
	}
	if d.err != nil {
		return nil, invalid(d.err)
	}
	result, err := s.ext.Claim(ctx, opts)
	return &pb.ClaimResponse{Lease: encodeLease(result.Lease)}, err
}

func (s *server) Destroy(ctx context.Context, req *pb.DestroyRequest) (*pb.DestroyResponse, error) {
	result, err := s.ext.Destroy(ctx, sdk.DestroyOptions{Target: decodeTarget(req.GetTarget())})
	resp := &pb.DestroyResponse{
		Existed: result.Existed, Removed: encodeTexts(result.Removed), Leftovers: encodeTexts(result.Leftovers),
	}
	if err != nil {
		resp.Failure = encodeFailure(err)
	}
	return resp, nil
}

func (s *server) Pause(ctx context.Context, req *pb.PauseRequest) (*pb.PauseResponse, error) {
	pauser, ok := sdk.As[sdk.Pauser](s.ext)
	if !ok {
		return nil, unannounced("pause")
	}
	result, err := pauser.Pause(ctx, sdk.PauseOptions{Target: decodeTarget(req.GetTarget())})
	if err != nil {
		return nil, err
	}
	sandbox, err := encodeSandbox(result.Sandbox)
	return &pb.PauseResponse{Sandbox: sandbox}, err
}

func (s *server) Inspect(ctx context.Context, req *pb.InspectRequest) (*pb.InspectResponse, error) {
	inspector, ok := sdk.As[sdk.Inspector](s.ext)
	if !ok {
		return nil, unannounced("inspect")
	}
	result, err := inspector.Inspect(ctx, sdk.InspectOptions{
		Target: decodeTarget(req.GetTarget()), Canary: req.GetCanary(), CanaryValue: sdk.Secret(req.GetCanaryValue()),
	})
	return &pb.InspectResponse{Findings: encodeFindings(result.Findings)}, err
}

func (s *server) Resume(ctx context.Context, req *pb.ResumeRequest) (*pb.ResumeResponse, error) {
	pauser, ok := sdk.As[sdk.Pauser](s.ext)
	if !ok {
		return nil, unannounced("pause")
	}
	result, err := pauser.Resume(ctx, sdk.ResumeOptions{Target: decodeTarget(req.GetTarget())})
	if err != nil {
		return nil, err
	}
	sandbox, err := encodeSandbox(result.Sandbox)
	return &pb.ResumeResponse{Sandbox: sandbox}, err
}

func (s *server) GetSnapshot(ctx context.Context, req *pb.GetSnapshotRequest) (*pb.GetSnapshotResponse, error) {
	snapshotter, ok := sdk.As[sdk.Snapshotter](s.ext)
	if !ok {
		return nil, unannounced("snapshot")
	}
	result, err := snapshotter.GetSnapshot(ctx, sdk.GetSnapshotOptions{SnapshotID: req.GetSnapshotId(), Fleet: req.GetFleet()})
	if err != nil {
		return nil, err
	}
	snapshot, err := encodeSnapshot(result.Snapshot)
	return &pb.GetSnapshotResponse{Snapshot: snapshot}, err
}

func (s *server) ExtendSnapshot(ctx context.Context, req *pb.ExtendSnapshotRequest) (*pb.ExtendSnapshotResponse, error) {
	snapshotter, ok := sdk.As[sdk.Snapshotter](s.ext)
	if !ok {
		return nil, unannounced("snapshot")
	}
	d := new(decoder)
	opts := sdk.ExtendSnapshotOptions{
		SnapshotID: req.GetSnapshotId(), Fleet: req.GetFleet(), ExpiresAt: d.time("expires_at", req.GetExpiresAt()),
	}
	if d.err != nil {
		return nil, invalid(d.err)
	}
	result, err := snapshotter.ExtendSnapshot(ctx, opts)
	if err != nil {
		return nil, err
	}
	snapshot, err := encodeSnapshot(result.Snapshot)
	return &pb.ExtendSnapshotResponse{Snapshot: snapshot}, err
}

func (s *server) DeleteSnapshot(ctx context.Context, req *pb.DeleteSnapshotRequest) (*pb.DeleteSnapshotResponse, error) {
	snapshotter, ok := sdk.As[sdk.Snapshotter](s.ext)
	if !ok {
		return nil, unannounced("snapshot")
	}
	result, err := snapshotter.DeleteSnapshot(ctx, sdk.DeleteSnapshotOptions{SnapshotID: req.GetSnapshotId(), Fleet: req.GetFleet()})
	return &pb.DeleteSnapshotResponse{Existed: result.Existed}, err
}
