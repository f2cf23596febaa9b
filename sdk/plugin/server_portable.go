// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

func (s *server) ExportSnapshot(req *pb.ExportSnapshotRequest, stream grpc.ServerStreamingServer[pb.ExportSnapshotResponse]) error {
	portable, ok := sdk.As[sdk.PortableSnapshotter](s.ext)
	if !ok {
		return unannounced("portable")
	}
	out := &sender[pb.ExportSnapshotResponse]{stream: stream}
	defer out.close()
	result, err := portable.ExportSnapshot(stream.Context(), sdk.ExportSnapshotOptions{
		SnapshotID: req.GetSnapshotId(), Fleet: req.GetFleet(),
		Archive: frameWriter{func(frame []byte) error {
			return out.send(&pb.ExportSnapshotResponse{Message: &pb.ExportSnapshotResponse_Data{Data: frame}})
		}},
		Progress: progressTo(req.GetProgress(), out, func(p *pb.Progress) *pb.ExportSnapshotResponse {
			return &pb.ExportSnapshotResponse{Message: &pb.ExportSnapshotResponse_Progress{Progress: p}}
		}),
	})
	if err != nil {
		return err
	}
	return out.send(&pb.ExportSnapshotResponse{Message: &pb.ExportSnapshotResponse_End{End: &pb.ExportEnd{
		Bytes: result.Bytes, Digest: result.Digest, Losses: encodeLosses(result.Losses),
	}}})
}

func (s *server) ImportSnapshot(stream grpc.BidiStreamingServer[pb.ImportSnapshotRequest, pb.ImportSnapshotResponse]) error {
	portable, ok := sdk.As[sdk.PortableSnapshotter](s.ext)
	if !ok {
		return unannounced("portable")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return invalid(errors.New("an import begins with its start"))
	}
	d, out := new(decoder), &sender[pb.ImportSnapshotResponse]{stream: stream}
	defer out.close()
	opts := sdk.ImportSnapshotOptions{
		SnapshotID: start.GetSnapshotId(), ExpiresAt: d.time("expires_at", start.GetExpiresAt()),
		Identity: d.identity(start.GetIdentityJson()), Event: d.event(start.GetEvent()),
		Progress: progressTo(start.GetProgress(), out, func(p *pb.Progress) *pb.ImportSnapshotResponse {
			return &pb.ImportSnapshotResponse{Message: &pb.ImportSnapshotResponse_Progress{Progress: p}}
		}),
	}
	if d.err != nil {
		return invalid(d.err)
	}
	r, w := io.Pipe()
	defer r.Close()
	stop := context.AfterFunc(stream.Context(), func() { _ = w.CloseWithError(context.Cause(stream.Context())) })
	defer stop()
	go pump(func() ([]byte, *pb.InputEnd, error) {
		message, err := stream.Recv()
		return message.GetData(), message.GetEnd(), err
	}, w)
	opts.Archive = r
	result, err := portable.ImportSnapshot(stream.Context(), opts)
	if err != nil {
		return err
	}
	snapshot, err := encodeSnapshot(result.Snapshot)
	if err != nil {
		return err
	}
	return out.send(&pb.ImportSnapshotResponse{Message: &pb.ImportSnapshotResponse_End{End: &pb.ImportEnd{Snapshot: snapshot, Losses: encodeLosses(result.Losses)}}})
}
