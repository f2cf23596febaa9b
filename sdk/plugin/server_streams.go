// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// sender lets several writers share the sending half of a stream, and ends
// them when the call has ended: an extension may report progress or write
// output from a goroutine that outlives its call.
type sender[T any] struct {
	mu     sync.Mutex
	stream interface{ Send(*T) error }
	closed bool
}

func (s *sender[T]) send(message *T) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return io.ErrClosedPipe
	}
	return s.stream.Send(message)
}

func (s *sender[T]) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// frameWriter writes a stream as frames of at most [chunkSize].
type frameWriter struct{ send func(frame []byte) error }

func (w frameWriter) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		frame := p[written:min(written+chunkSize, len(p))]
		if err := w.send(frame); err != nil {
			return written, err
		}
		written += len(frame)
	}
	return written, nil
}

// progressTo returns what an extension calls with its progress, or nil when
// the caller does not listen.
func progressTo[T any](listening bool, out *sender[T], wrap func(*pb.Progress) *T) func(sdk.Progress) {
	if !listening {
		return nil
	}
	return func(p sdk.Progress) {
		// The end of a caller that listens is seen by the call's context.
		_ = out.send(wrap(encodeProgress(p)))
	}
}

func (s *server) Create(req *pb.CreateRequest, stream grpc.ServerStreamingServer[pb.CreateResponse]) error {
	d, out := new(decoder), &sender[pb.CreateResponse]{stream: stream}
	defer out.close()
	opts := d.create(req.GetOptions())
	if d.err != nil {
		return invalid(d.err)
	}
	opts.Progress = progressTo(req.GetProgress(), out, func(p *pb.Progress) *pb.CreateResponse {
		return &pb.CreateResponse{Message: &pb.CreateResponse_Progress{Progress: p}}
	})
	result, err := s.ext.Create(stream.Context(), opts)
	if err != nil {
		return err
	}
	sandbox, err := encodeSandbox(result.Sandbox)
	if err != nil {
		return err
	}
	return out.send(&pb.CreateResponse{Message: &pb.CreateResponse_Sandbox{Sandbox: sandbox}})
}

func (s *server) Restore(req *pb.RestoreRequest, stream grpc.ServerStreamingServer[pb.RestoreResponse]) error {
	snapshotter, ok := sdk.As[sdk.Snapshotter](s.ext)
	if !ok {
		return unannounced("snapshot")
	}
	d, out := new(decoder), &sender[pb.RestoreResponse]{stream: stream}
	defer out.close()
	opts := sdk.RestoreOptions{SnapshotID: req.GetSnapshotId(), Create: d.create(req.GetOptions())}
	if d.err != nil {
		return invalid(d.err)
	}
	opts.Create.Progress = progressTo(req.GetProgress(), out, func(p *pb.Progress) *pb.RestoreResponse {
		return &pb.RestoreResponse{Message: &pb.RestoreResponse_Progress{Progress: p}}
	})
	result, err := snapshotter.Restore(stream.Context(), opts)
	if err != nil {
		return err
	}
	sandbox, err := encodeSandbox(result.Sandbox)
	if err != nil {
		return err
	}
	return out.send(&pb.RestoreResponse{Message: &pb.RestoreResponse_Sandbox{Sandbox: sandbox}})
}

func (s *server) Prepare(req *pb.PrepareRequest, stream grpc.ServerStreamingServer[pb.PrepareResponse]) error {
	preparer, ok := sdk.As[sdk.Preparer](s.ext)
	if !ok {
		return unannounced("prepare")
	}
	d, out := new(decoder), &sender[pb.PrepareResponse]{stream: stream}
	defer out.close()
	opts := sdk.PrepareOptions{Profile: d.profile(req.GetProfileJson())}
	if d.err != nil {
		return invalid(d.err)
	}
	opts.Progress = progressTo(req.GetProgress(), out, func(p *pb.Progress) *pb.PrepareResponse {
		return &pb.PrepareResponse{Message: &pb.PrepareResponse_Progress{Progress: p}}
	})
	result, err := preparer.Prepare(stream.Context(), opts)
	if err != nil {
		return err
	}
	return out.send(&pb.PrepareResponse{Message: &pb.PrepareResponse_End{End: &pb.PrepareEnd{ImageDigest: result.ImageDigest}}})
}

func (s *server) Snapshot(req *pb.SnapshotRequest, stream grpc.ServerStreamingServer[pb.SnapshotResponse]) error {
	snapshotter, ok := sdk.As[sdk.Snapshotter](s.ext)
	if !ok {
		return unannounced("snapshot")
	}
	d, out := new(decoder), &sender[pb.SnapshotResponse]{stream: stream}
	defer out.close()
	opts := sdk.SnapshotOptions{
		Target: decodeTarget(req.GetTarget()), SnapshotID: req.GetSnapshotId(), Kind: sdk.SnapshotKind(req.GetKind()),
		ExpiresAt: d.time("expires_at", req.GetExpiresAt()), Identity: d.identity(req.GetIdentityJson()),
		Event: d.event(req.GetEvent()),
	}
	if d.err != nil {
		return invalid(d.err)
	}
	opts.Progress = progressTo(req.GetProgress(), out, func(p *pb.Progress) *pb.SnapshotResponse {
		return &pb.SnapshotResponse{Message: &pb.SnapshotResponse_Progress{Progress: p}}
	})
	result, err := snapshotter.Snapshot(stream.Context(), opts)
	if err != nil {
		return err
	}
	snapshot, err := encodeSnapshot(result.Snapshot)
	if err != nil {
		return err
	}
	return out.send(&pb.SnapshotResponse{Message: &pb.SnapshotResponse_Snapshot{Snapshot: snapshot}})
}

func (s *server) List(req *pb.ListRequest, stream grpc.ServerStreamingServer[pb.ListResponse]) error {
	result, err := s.ext.List(stream.Context(), sdk.ListOptions{Fleet: req.GetFleet()})
	if err != nil {
		return err
	}
	incomplete := result.Incomplete
	for _, item := range result.Sandboxes {
		sandbox, err := encodeSandbox(item)
		if err != nil {
			incomplete = join(incomplete, fmt.Sprintf("sandbox %s: %v", encodeText(item.ID), err))
			continue
		}
		if err := stream.Send(&pb.ListResponse{Message: &pb.ListResponse_Sandbox{Sandbox: sandbox}}); err != nil {
			return err
		}
	}
	end := &pb.ListEnd{Incomplete: encodeText(incomplete)}
	for _, id := range result.Unreadable {
		end.Unreadable = append(end.Unreadable, encodeText(id))
	}
	return stream.Send(&pb.ListResponse{Message: &pb.ListResponse_End{End: end}})
}

func (s *server) ListSnapshots(req *pb.ListSnapshotsRequest, stream grpc.ServerStreamingServer[pb.ListSnapshotsResponse]) error {
	snapshotter, ok := sdk.As[sdk.Snapshotter](s.ext)
	if !ok {
		return unannounced("snapshot")
	}
	result, err := snapshotter.ListSnapshots(stream.Context(), sdk.ListSnapshotsOptions{Fleet: req.GetFleet()})
	if err != nil {
		return err
	}
	incomplete := result.Incomplete
	for _, item := range result.Snapshots {
		snapshot, err := encodeSnapshot(item)
		if err != nil {
			incomplete = join(incomplete, fmt.Sprintf("snapshot %s: %v", encodeText(item.ID), err))
			continue
		}
		if err := stream.Send(&pb.ListSnapshotsResponse{Message: &pb.ListSnapshotsResponse_Snapshot{Snapshot: snapshot}}); err != nil {
			return err
		}
	}
	return stream.Send(&pb.ListSnapshotsResponse{Message: &pb.ListSnapshotsResponse_End{End: &pb.ListEnd{Incomplete: encodeText(incomplete)}}})
}

// join adds a reason to the reasons why a listing is not complete.
func join(reasons, reason string) string {
	if reasons == "" {
		return reason
	}
	return reasons + "; " + reason
}

// pump moves an input from its frames into a pipe until it ends. Each read
// of next waits for the pipe, so that flow control reaches the sender.
func pump(next func() (data []byte, end *pb.InputEnd, err error), w *io.PipeWriter) {
	for {
		data, end, err := next()
		switch {
		case errors.Is(err, io.EOF):
			err = fmt.Errorf("the input was cut off: %w", io.ErrUnexpectedEOF)
		case err == nil && end.GetError() != "":
			err = fmt.Errorf("the input was cut off by its sender: %s", cut(end.GetError()))
		case err == nil && end != nil:
			err = io.EOF
		case err == nil && len(data) > chunkSize:
			err = fmt.Errorf("a frame of %d bytes, at most %d are allowed", len(data), chunkSize)
		}
		if err != nil {
			// A nil or io.EOF end is a whole input.
			_ = w.CloseWithError(err)
			return
		}
		if len(data) == 0 {
			continue // a kind of message that this side does not know
		}
		if _, err := w.Write(data); err != nil {
			return
		}
	}
}

func (s *server) Exec(stream grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse]) error {
	execer, ok := sdk.As[sdk.Execer](s.ext)
	if !ok {
		return unannounced("exec")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start, d := first.GetStart(), new(decoder)
	if start == nil {
		return invalid(errors.New("an exec begins with its start"))
	}
	opts := sdk.ExecOptions{
		Target: decodeTarget(start.GetTarget()), Command: start.GetCommand(), Env: start.GetEnv(), User: start.GetUser(),
		Workdir: start.GetWorkdir(), Timeout: d.duration("timeout", start.GetTimeout()),
	}
	if d.err != nil {
		return invalid(d.err)
	}
	out := &sender[pb.ExecResponse]{stream: stream}
	defer out.close()
	if start.GetStdout() {
		opts.Stdout = frameWriter{func(frame []byte) error {
			return out.send(&pb.ExecResponse{Message: &pb.ExecResponse_Stdout{Stdout: frame}})
		}}
	}
	if start.GetStderr() {
		opts.Stderr = frameWriter{func(frame []byte) error {
			return out.send(&pb.ExecResponse{Message: &pb.ExecResponse_Stderr{Stderr: frame}})
		}}
	}
	if start.GetStdin() {
		r, w := io.Pipe()
		defer r.Close() // ends the pump
		stop := context.AfterFunc(stream.Context(), func() { _ = w.CloseWithError(context.Cause(stream.Context())) })
		defer stop()
		go pump(func() ([]byte, *pb.InputEnd, error) {
			message, err := stream.Recv()
			return message.GetStdin(), message.GetStdinEnd(), err
		}, w)
		opts.Stdin = r
	}
	result, err := execer.Exec(stream.Context(), opts)
	if err != nil {
		return err
	}
	return out.send(&pb.ExecResponse{Message: &pb.ExecResponse_End{
		End: &pb.ExecEnd{ExitCode: int32(result.ExitCode), TimedOut: result.TimedOut},
	}})
}

func (s *server) CopyIn(stream grpc.ClientStreamingServer[pb.CopyInRequest, pb.CopyInResponse]) error {
	copier, ok := sdk.As[sdk.Copier](s.ext)
	if !ok {
		return unannounced("copy")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return invalid(errors.New("a copy begins with its start"))
	}
	r, w := io.Pipe()
	defer r.Close()
	stop := context.AfterFunc(stream.Context(), func() { _ = w.CloseWithError(context.Cause(stream.Context())) })
	defer stop()
	go pump(func() ([]byte, *pb.InputEnd, error) {
		message, err := stream.Recv()
		return message.GetData(), message.GetEnd(), err
	}, w)
	result, err := copier.CopyIn(stream.Context(), sdk.CopyInOptions{
		Target: decodeTarget(start.GetTarget()), Path: start.GetPath(), Archive: r,
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(&pb.CopyInResponse{Bytes: result.Bytes})
}

func (s *server) CopyOut(req *pb.CopyOutRequest, stream grpc.ServerStreamingServer[pb.CopyOutResponse]) error {
	copier, ok := sdk.As[sdk.Copier](s.ext)
	if !ok {
		return unannounced("copy")
	}
	out := &sender[pb.CopyOutResponse]{stream: stream}
	defer out.close()
	result, err := copier.CopyOut(stream.Context(), sdk.CopyOutOptions{
		Target: decodeTarget(req.GetTarget()), Path: req.GetPath(),
		Archive: frameWriter{func(frame []byte) error {
			return out.send(&pb.CopyOutResponse{Message: &pb.CopyOutResponse_Data{Data: frame}})
		}},
	})
	if err != nil {
		return err
	}
	return out.send(&pb.CopyOutResponse{Message: &pb.CopyOutResponse_End{End: &pb.OutputEnd{Bytes: result.Bytes}}})
}

func (s *server) Logs(req *pb.LogsRequest, stream grpc.ServerStreamingServer[pb.LogsResponse]) error {
	logger, ok := sdk.As[sdk.Logger](s.ext)
	if !ok {
		return unannounced("logs")
	}
	out := &sender[pb.LogsResponse]{stream: stream}
	defer out.close()
	result, err := logger.Logs(stream.Context(), sdk.LogsOptions{
		Target: decodeTarget(req.GetTarget()), Source: sdk.LogSource(req.GetSource()), Follow: req.GetFollow(), Tail: int(req.GetTail()),
		Output: frameWriter{func(frame []byte) error {
			return out.send(&pb.LogsResponse{Message: &pb.LogsResponse_Data{Data: frame}})
		}},
	})
	if err != nil {
		return err
	}
	return out.send(&pb.LogsResponse{Message: &pb.LogsResponse_End{End: &pb.OutputEnd{Bytes: result.Bytes}}})
}
