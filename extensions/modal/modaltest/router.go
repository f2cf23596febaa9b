// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

// The router: commands, their streams, and snapshots.

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/jail"
)

type router struct {
	pb.UnimplementedTaskCommandRouterServer
	server *Server
}

// alive returns the sandbox of a task that runs.
func (r *router) alive(ctx context.Context, task string) (*sandbox, error) {
	r.server.evict()
	sb, err := r.server.taskOf(ctx, task)
	if err != nil {
		return nil, err
	}
	if r.server.outcome(sb) != nil {
		return nil, status.Error(codes.FailedPrecondition, "the sandbox has already finished")
	}
	return sb, nil
}

// maxArguments bounds the arguments of a command together, in bytes.
const maxArguments = 1 << 16

// TaskExecStart starts a command, once for an exec id. What the vendor answers
// to a program that is not there is not known; here it ends with 127.
func (r *router) TaskExecStart(ctx context.Context, req *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	s := r.server
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	size := 0
	for _, arg := range req.GetCommandArgs() {
		size += len(arg)
	}
	if len(req.GetCommandArgs()) == 0 || req.GetExecId() == "" || size > maxArguments {
		return nil, status.Error(codes.InvalidArgument, "no command, no exec id, or too many arguments")
	}
	sb.mu.Lock()
	if sb.processes[req.GetExecId()] != nil {
		sb.mu.Unlock()
		return &pb.TaskExecStartResponse{}, nil
	}
	p := newProcess()
	sb.processes[req.GetExecId()] = p
	sb.mu.Unlock()
	if err := r.start(sb, p, req); err != nil {
		sb.mu.Lock()
		delete(sb.processes, req.GetExecId())
		sb.mu.Unlock()
		return nil, err
	}
	// A sandbox that ended meanwhile has killed everything in it but this.
	if s.outcome(sb) != nil {
		sb.jail.KillAll()
	}
	return &pb.TaskExecStartResponse{}, nil
}

func (r *router) start(sb *sandbox, p *process, req *pb.TaskExecStartRequest) error {
	s := r.server
	if err := sb.jail.Open(); err != nil {
		return status.Errorf(codes.FailedPrecondition, "%s", err)
	}
	if req.GetCommandArgs()[0] == fsTools {
		input, feed := io.Pipe()
		p.input = feed
		ended := s.use(sb)
		s.running.Go(func() {
			defer ended()
			sb.files(p, input, req.GetCommandArgs()[1:])
		})
		// It may wait for input that nobody sends any more.
		s.running.Go(func() {
			select {
			case <-sb.done:
			case <-s.life.Done():
			case <-p.done:
			}
			_ = input.CloseWithError(io.ErrUnexpectedEOF) // a second time is no harm
		})
		return nil
	}
	s.mu.Lock()
	env, err := s.environmentFrom(req.GetSecretIds(), req.GetSecretSources(), req.GetEnv())
	s.mu.Unlock()
	if err != nil {
		return err
	}
	cwd := req.GetWorkdir()
	if cwd == "" {
		cwd = sb.definition.GetWorkdir()
	}
	if cwd == "" {
		cwd = "/"
	}
	if !path.IsAbs(cwd) || !sb.isDir(cwd) {
		return status.Errorf(codes.InvalidArgument, "workdir %q does not exist", cwd)
	}
	cmd, err := sb.jail.Command(cwd, req.GetCommandArgs(), sb.environ(env))
	if err != nil {
		if errors.Is(err, jail.ErrGone) {
			return status.Error(codes.FailedPrecondition, "the sandbox has already finished")
		}
		return status.Errorf(codes.Internal, "%s", err)
	}
	ended := s.use(sb)
	if err := s.run(p, cmd, time.Duration(req.GetTimeoutSecs())*time.Second, ended); err != nil {
		ended()
		return status.Errorf(codes.Internal, "%s", err)
	}
	// What nobody wants is dropped.
	if req.GetStdoutConfig() == pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_DEVNULL {
		p.stdout.end()
	}
	if req.GetStderrConfig() == pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_DEVNULL {
		p.stderr.end()
	}
	return nil
}

// process returns a command of a task, also after the end of both.
func (r *router) process(ctx context.Context, task, id string) (*process, error) {
	sb, err := r.server.taskOf(ctx, task)
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	p := sb.processes[id]
	if p == nil {
		return nil, status.Errorf(codes.NotFound, "no exec %q", id)
	}
	return p, nil
}

func (r *router) TaskExecWait(ctx context.Context, req *pb.TaskExecWaitRequest) (*pb.TaskExecWaitResponse, error) {
	p, err := r.process(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-r.server.life.Done():
		return nil, status.Error(codes.Unavailable, "the server ends")
	}
	code, signal := p.outcome()
	return pb.TaskExecWaitResponse_builder{Code: code, Signal: signal}.Build(), nil
}

func (r *router) TaskExecPoll(ctx context.Context, req *pb.TaskExecPollRequest) (*pb.TaskExecPollResponse, error) {
	p, err := r.process(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	code, signal := p.outcome()
	return pb.TaskExecPollResponse_builder{Code: code, Signal: signal}.Build(), nil
}

func (r *router) TaskExecStdioRead(req *pb.TaskExecStdioReadRequest, answer grpc.ServerStreamingServer[pb.TaskExecStdioReadResponse]) error {
	p, err := r.process(answer.Context(), req.GetTaskId(), req.GetExecId())
	if err != nil {
		return err
	}
	from := &p.stdout
	if req.GetFileDescriptor() == pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR {
		from = &p.stderr
	}
	cut := r.server.faults.told(answer.Context(), CutStream)
	// A client that goes ends its stream and nothing else.
	return from.follow(answer.Context(), req.GetOffset(), func(data []byte) error {
		if cut {
			_ = answer.Send(pb.TaskExecStdioReadResponse_builder{Data: data[:min(3, len(data))]}.Build())
			return status.Error(codes.Unavailable, "a fault that was asked for")
		}
		return answer.Send(pb.TaskExecStdioReadResponse_builder{Data: data}.Build())
	})
}

func (r *router) TaskExecStdinWrite(ctx context.Context, req *pb.TaskExecStdinWriteRequest) (*pb.TaskExecStdinWriteResponse, error) {
	p, err := r.process(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	if err := p.write(req.GetOffset(), req.GetData(), req.GetEof()); err != nil {
		return nil, err
	}
	return &pb.TaskExecStdinWriteResponse{}, nil
}

func (r *router) TaskExecStdinWriteStream(stream grpc.ClientStreamingServer[pb.TaskExecStdinWriteStreamRequest, pb.TaskExecStdinWriteStreamResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return status.Error(codes.InvalidArgument, "the stream does not begin with its start")
	}
	p, err := r.process(stream.Context(), start.GetTaskId(), start.GetExecId())
	if err != nil {
		return err
	}
	offset := start.GetOffset()
	for {
		next, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			// Without its end the input stays open.
			return stream.SendAndClose(&pb.TaskExecStdinWriteStreamResponse{})
		}
		if err != nil {
			return err
		}
		if next.HasEnd() {
			if err := p.write(offset, nil, true); err != nil {
				return err
			}
			return stream.SendAndClose(&pb.TaskExecStdinWriteStreamResponse{})
		}
		if err := p.write(offset, next.GetData(), false); err != nil {
			return err
		}
		offset += uint64(len(next.GetData()))
	}
}

func (r *router) TaskExecStdinStatus(ctx context.Context, req *pb.TaskExecStdinStatusRequest) (*pb.TaskExecStdinStatusResponse, error) {
	p, err := r.process(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return pb.TaskExecStdinStatusResponse_builder{NumBytesWritten: p.written, Closed: p.closed}.Build(), nil
}

// snapshot makes an image of a directory of a sandbox, once for an id.
func (r *router) snapshot(ctx context.Context, sb *sandbox, id string, ttl *int64, capture func(dir string) error) (string, error) {
	s := r.server
	if ttl == nil || (*ttl <= 0 && *ttl != -1) {
		return "", status.Error(codes.InvalidArgument, "ttl_seconds must be positive, or -1 for no end")
	}
	if id == "" {
		return "", status.Error(codes.InvalidArgument, "no snapshot_id")
	}
	s.pause(ctx, s.options.SnapshotTakes)
	if ctx.Err() != nil {
		return "", status.FromContextError(ctx.Err()).Err()
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if made := sb.snapshots[id]; made != "" {
		return made, nil
	}
	s.mu.Lock()
	dir, err := s.newDir("image")
	s.mu.Unlock()
	if err == nil {
		err = capture(dir)
	}
	if err != nil {
		return "", status.Errorf(codes.Internal, "snapshot: %s", err)
	}
	made := &image{id: mint("im-", alphanumeric, 22), dir: dir, snapshot: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb.result != nil {
		return "", status.Error(codes.FailedPrecondition, "the sandbox finished while its snapshot was made")
	}
	if *ttl > 0 {
		made.expires = s.now().Add(time.Duration(*ttl) * time.Second)
	}
	s.images[made.id] = made
	sb.snapshots[id] = made.id
	return made.id, nil
}

func (r *router) TaskSnapshotFilesystem(ctx context.Context, req *pb.TaskSnapshotFilesystemRequest) (*pb.TaskSnapshotFilesystemResponse, error) {
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	var ttl *int64
	if req.HasTtlSeconds() {
		n := req.GetTtlSeconds()
		ttl = &n
	}
	id, err := r.snapshot(ctx, sb, req.GetSnapshotId(), ttl, func(dir string) error {
		sb.jail.Freeze()
		defer sb.jail.Thaw()
		return sb.jail.CopyTo(dir)
	})
	if err != nil {
		return nil, err
	}
	if r.server.faults.told(ctx, NoImage) {
		id = ""
	}
	return pb.TaskSnapshotFilesystemResponse_builder{ImageId: id}.Build(), nil
}

func (r *router) TaskSnapshotDirectory(ctx context.Context, req *pb.TaskSnapshotDirectoryRequest) (*pb.TaskSnapshotDirectoryResponse, error) {
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	inside, err := sb.jail.Inside(string(req.GetPath()))
	if err != nil || !sb.isDir(string(req.GetPath())) {
		return nil, status.Errorf(codes.NotFound, "no directory %q", req.GetPath())
	}
	var ttl *int64
	if req.HasTtlSeconds() {
		n := req.GetTtlSeconds()
		ttl = &n
	}
	id, err := r.snapshot(ctx, sb, req.GetSnapshotId(), ttl, func(dir string) error { return jail.CopyTree(inside, dir) })
	if err != nil {
		return nil, err
	}
	return pb.TaskSnapshotDirectoryResponse_builder{ImageId: id}.Build(), nil
}

// TaskMountDirectory copies the files of an image to a directory.
func (r *router) TaskMountDirectory(ctx context.Context, req *pb.TaskMountDirectoryRequest) (*emptypb.Empty, error) {
	s := r.server
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	from, err := s.lookup(req.GetImageId())
	s.mu.Unlock()
	if err == nil {
		err = sb.jail.Open()
	}
	if err != nil {
		return nil, err
	}
	inside, err := sb.jail.Inside(string(req.GetPath()))
	if err == nil {
		err = os.MkdirAll(inside, 0o755)
	}
	if err == nil && from.dir != "" {
		err = jail.CopyTree(from.dir, inside)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "mount: %s", err)
	}
	return &emptypb.Empty{}, nil
}

func (r *router) TaskUnmountDirectory(ctx context.Context, req *pb.TaskUnmountDirectoryRequest) (*emptypb.Empty, error) {
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	inside, err := sb.jail.Inside(string(req.GetPath()))
	if err == nil {
		err = os.RemoveAll(inside)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "unmount: %s", err)
	}
	return &emptypb.Empty{}, nil
}

// TaskSnapshotMemory keeps the files of a sandbox, which it ends.
func (r *router) TaskSnapshotMemory(ctx context.Context, req *pb.TaskSnapshotMemoryRequest) (*pb.TaskSnapshotMemoryResponse, error) {
	s := r.server
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if !sb.definition.GetEnableSnapshot() {
		return nil, status.Error(codes.InvalidArgument, "the sandbox was made without enable_snapshot")
	}
	forever := int64(-1)
	id, err := r.snapshot(ctx, sb, req.GetIdempotencyKey(), &forever, sb.jail.CopyTo)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	snapshot := mint("sn-", crockford, 26)
	s.memories[snapshot] = &memory{sandbox: sb, image: id}
	finish := s.finish(sb, pb.GenericResult_GENERIC_STATUS_TERMINATED, 137, "its memory was snapshotted")
	s.mu.Unlock()
	finish()
	return pb.TaskSnapshotMemoryResponse_builder{SnapshotId: snapshot}.Build(), nil
}

// TaskSetNetworkAccess remembers a policy.
func (r *router) TaskSetNetworkAccess(ctx context.Context, req *pb.TaskSetNetworkAccessRequest) (*pb.TaskSetNetworkAccessResponse, error) {
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.network = req.GetNetworkAccess()
	return &pb.TaskSetNetworkAccessResponse{}, nil
}

func (r *router) TaskReloadVolumes(ctx context.Context, req *pb.TaskReloadVolumesRequest) (*pb.TaskReloadVolumesResponse, error) {
	if _, err := r.alive(ctx, req.GetTaskId()); err != nil {
		return nil, err
	}
	return &pb.TaskReloadVolumesResponse{}, nil
}

// SandboxWaitUntilReady answers at once: a probe is not made.
func (r *router) SandboxWaitUntilReady(ctx context.Context, req *pb.SandboxWaitUntilReadyTcrRequest) (*pb.SandboxWaitUntilReadyTcrResponse, error) {
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if sb.definition.GetReadinessProbe() == nil {
		return nil, status.Error(codes.InvalidArgument, "the sandbox was made without a readiness probe")
	}
	return pb.SandboxWaitUntilReadyTcrResponse_builder{ReadyAt: unixSeconds(r.server.now())}.Build(), nil
}

func (r *router) SandboxStdioReadV2(req *pb.SandboxStdioReadV2Request, answer grpc.ServerStreamingServer[pb.SandboxStdioReadV2Response]) error {
	sb, err := r.server.taskOf(answer.Context(), req.GetTaskId())
	if err != nil {
		return err
	}
	main := r.server.mainOf(answer.Context(), sb)
	if main == nil {
		select {
		case <-sb.done:
			return nil
		case <-answer.Context().Done():
			return status.FromContextError(answer.Context().Err()).Err()
		}
	}
	from := &main.stdout
	if req.GetFileDescriptor() == pb.SandboxStdioFileDescriptor_SANDBOX_STDIO_FILE_DESCRIPTOR_STDERR {
		from = &main.stderr
	}
	offset := req.GetOffset()
	return from.follow(answer.Context(), offset, func(data []byte) error {
		at := offset
		offset += uint64(len(data))
		return answer.Send(pb.SandboxStdioReadV2Response_builder{Data: data, StartingOffset: at}.Build())
	})
}

func (r *router) SandboxStdinWriteV2(ctx context.Context, req *pb.SandboxStdinWriteV2Request) (*pb.SandboxStdinWriteV2Response, error) {
	sb, err := r.alive(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	main := r.server.mainOf(ctx, sb)
	if main == nil {
		return nil, status.Error(codes.FailedPrecondition, "the sandbox has no entrypoint")
	}
	defer r.server.use(sb)()
	if err := main.write(req.GetOffset(), req.GetData(), req.GetEof()); err != nil {
		return nil, err
	}
	return &pb.SandboxStdinWriteV2Response{}, nil
}
