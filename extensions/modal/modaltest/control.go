// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

// The control plane's calls about sandboxes. Each is there for both
// generations: a sandbox of one is not found by the calls of the other.

import (
	"context"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/jail"
)

type controlPlane struct {
	pb.UnimplementedModalClientServer
	server *Server
}

func (c *controlPlane) SandboxCreateV2(ctx context.Context, req *pb.SandboxCreateV2Request) (*pb.SandboxCreateV2Response, error) {
	s := c.server
	definition := req.GetDefinition()
	sources := req.GetSecretSources()
	if more := req.GetEphemeralSecrets().GetContents(); len(more) > 0 {
		sources = append(sources, pb.SecretSource_builder{Env: pb.StringMap_builder{Contents: more}.Build()}.Build())
	}
	sb, err := s.create(ctx, definition, req.GetAppId(), tagsOf(req.GetTags()), sources, false)
	if err != nil {
		return nil, err
	}
	answer := pb.SandboxCreateV2Response_builder{
		SandboxId: sb.id, Tunnels: sb.tunnels(false), Metadata: pb.SandboxHandleMetadata_builder{AppId: sb.app}.Build(),
	}
	s.mu.Lock()
	pending := s.pending(sb)
	s.mu.Unlock()
	if !pending && !s.faults.told(ctx, NoAccess) {
		answer.TaskId = sb.task
		answer.CommandRouterAccess = pb.CommandRouterAccess_builder{Jwt: s.routerToken(sb.task), Url: s.routerURL()}.Build()
	}
	return answer.Build(), nil
}

func (c *controlPlane) SandboxCreate(ctx context.Context, req *pb.SandboxCreateRequest) (*pb.SandboxCreateResponse, error) {
	sb, err := c.server.create(ctx, req.GetDefinition(), req.GetAppId(), tagsOf(req.GetTags()), nil, true)
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateResponse_builder{SandboxId: sb.id, Metadata: pb.SandboxHandleMetadata_builder{AppId: sb.app}.Build()}.Build(), nil
}

// create makes a sandbox, once for an idempotency key.
func (s *Server) create(ctx context.Context, definition *pb.Sandbox, appID string, tags map[string]string, sources []*pb.SecretSource, v1 bool) (*sandbox, error) {
	s.evict()
	s.mu.Lock()
	defer s.mu.Unlock()
	key := ""
	if md, ok := metadata.FromIncomingContext(ctx); ok && !s.options.NoDedup {
		if values := md.Get("x-idempotency-key"); len(values) > 0 {
			key = values[0]
		}
	}
	if made := s.sandboxes[s.replays[key]]; key != "" && made != nil {
		return made, nil
	}
	found, err := s.appOf(appID)
	if err != nil {
		return nil, err
	}
	from, err := s.lookup(definition.GetImageId())
	if err != nil {
		return nil, err
	}
	if err := s.check(definition, found); err != nil {
		return nil, err
	}
	env, err := s.environmentFrom(definition.GetSecretIds(), sources, definition.GetEnvironmentVariables().GetContents())
	if err != nil {
		return nil, err
	}
	sb := &sandbox{
		app: found.id, environment: found.environment, name: definition.GetName(), v1: v1, definition: clone(definition), tags: tags, env: env,
		idle: time.Duration(definition.GetIdleTimeoutSecs()) * time.Second, done: make(chan struct{}),
		processes: map[string]*process{}, snapshots: map[string]string{}, network: definition.GetNetworkAccess(),
	}
	sb.id, sb.task = mint("sb-", crockford, 26), mint("ta-", crockford, 26)
	if v1 {
		sb.id, sb.task = mint("sb-", alphanumeric, 22), mint("ta-", alphanumeric, 22)
	}
	// Times of creation differ, by more than a number that holds one can blur:
	// pages are bounded by them.
	sb.created = s.now().Truncate(time.Microsecond)
	if !sb.created.After(s.last) && !s.faults.told(ctx, TieTimes) {
		sb.created = s.last.Add(10 * time.Microsecond)
	}
	if sb.created.After(s.last) {
		s.last = sb.created
	}
	now := s.now() // that of the creation may be later, to be unique
	sb.scheduled, sb.active = now.Add(s.options.StartTakes), now.Add(s.options.StartTakes)
	sb.ends = now.Add(time.Duration(definition.GetTimeoutSecs()) * time.Second)
	binds := map[string]string{}
	for _, mount := range definition.GetVolumeMounts() {
		v := s.volumeOf(mount.GetVolumeId())
		if v == nil {
			return nil, status.Errorf(codes.NotFound, "Volume with ID %s not found", mount.GetVolumeId())
		}
		binds[mount.GetMountPath()] = filepath.Join(v.dir, mount.GetSubPath())
	}
	sb.jail = jail.New(jail.Options{Dir: filepath.Join(s.options.Dir, sb.id), Source: from.dir, Binds: binds})
	s.sandboxes[sb.id], s.tasks[sb.task] = sb, sb
	if key != "" {
		s.replays[key] = sb.id
	}
	if args := definition.GetEntrypointArgs(); len(args) > 0 && !idles(args) {
		s.running.Go(func() { s.runMain(sb, args) })
	}
	return sb, nil
}

// idles reports whether an entrypoint only waits: it is then not started, for
// a test may make thousands.
func idles(args []string) bool { return len(args) == 2 && args[0] == "sleep" && len(args[1]) >= 5 }

func (s *Server) volumeOf(id string) *volume {
	for _, v := range s.volumes {
		if v.id == id {
			return v
		}
	}
	return nil
}

var validName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// check refuses what the vendor does. The caller holds the lock.
func (s *Server) check(d *pb.Sandbox, a *app) error {
	if d.GetTimeoutSecs() == 0 || d.GetTimeoutSecs() > maxLifetime {
		// The vendor's text for this is not known.
		return status.Errorf(codes.InvalidArgument, "timeout must be between 1 and %d seconds, not %d", maxLifetime, d.GetTimeoutSecs())
	}
	for _, list := range [][]string{d.GetNetworkAccess().GetAllowedCidrs(), d.GetInboundCidrAllowlist()} {
		for _, entry := range list {
			if _, err := netip.ParsePrefix(entry); err != nil {
				return status.Errorf(codes.InvalidArgument, "Invalid CIDR: %s", entry)
			}
		}
	}
	for _, region := range d.GetSchedulerPlacement().GetRegions() {
		if strings.HasPrefix(region, "nowhere") {
			return status.Errorf(codes.InvalidArgument, "Invalid region: %s", region)
		}
	}
	if d.GetCloudProviderStr() != "" && !slices.Contains([]string{"aws", "gcp", "oci", "auto"}, strings.ToLower(d.GetCloudProviderStr())) {
		return status.Errorf(codes.InvalidArgument, "Invalid cloud provider: %s", d.GetCloudProviderStr())
	}
	running := 0
	for _, other := range s.sandboxes {
		if other.result != nil {
			continue
		}
		running++
		if d.GetName() != "" && other.app == a.id && other.name == d.GetName() {
			return status.Errorf(codes.AlreadyExists, "Sandbox with name '%s' already exists", d.GetName())
		}
	}
	if d.GetName() != "" && !validName.MatchString(d.GetName()) {
		return status.Errorf(codes.InvalidArgument, "Invalid sandbox name: %s", d.GetName())
	}
	if running >= s.options.Concurrent {
		return status.Errorf(codes.ResourceExhausted, "the workspace has %d of at most %d running sandboxes", running, s.options.Concurrent)
	}
	return nil
}

// tunnels are the ports of a sandbox. Those that are encrypted are known at
// once, with a host of their own; the others are the ports themselves.
func (sb *sandbox) tunnels(all bool) []*pb.TunnelData {
	var found []*pb.TunnelData
	for _, port := range sb.definition.GetOpenPorts().GetPorts() {
		data := pb.TunnelData_builder{ContainerPort: port.GetPort(), Host: strings.ToLower(sb.id[3:]) + "-" + "p.modal.invalid", Port: 443}
		if port.GetUnencrypted() {
			if !all {
				continue
			}
			here, number := "127.0.0.1", port.GetPort()
			data.UnencryptedHost, data.UnencryptedPort = &here, &number
		}
		found = append(found, data.Build())
	}
	return found
}

func (c *controlPlane) tunnels(id string, v1 bool) (*pb.SandboxGetTunnelsResponse, error) {
	sb, err := c.server.find(id, v1)
	if err != nil {
		return nil, err
	}
	if result := c.server.outcome(sb); result != nil {
		return pb.SandboxGetTunnelsResponse_builder{Result: result}.Build(), nil
	}
	return pb.SandboxGetTunnelsResponse_builder{
		Result: pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}.Build(), Tunnels: sb.tunnels(true),
	}.Build(), nil
}

func (c *controlPlane) SandboxGetTunnelsV2(_ context.Context, req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	return c.tunnels(req.GetSandboxId(), false)
}

func (c *controlPlane) SandboxGetTunnels(_ context.Context, req *pb.SandboxGetTunnelsRequest) (*pb.SandboxGetTunnelsResponse, error) {
	return c.tunnels(req.GetSandboxId(), true)
}

// await waits for the end of a sandbox, up to so many seconds.
func (c *controlPlane) await(ctx context.Context, req *pb.SandboxWaitRequest, v1 bool) (*pb.SandboxWaitResponse, error) {
	s := c.server
	sb, err := s.find(req.GetSandboxId(), v1)
	if err != nil {
		return nil, err
	}
	if wait := seconds(req.GetTimeout()); wait > 0 && s.outcome(sb) == nil {
		over, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			s.pause(over, wait)
			cancel()
		}()
		select {
		case <-sb.done:
		case <-over.Done():
		}
	}
	answer := pb.SandboxWaitResponse_builder{Metadata: pb.SandboxHandleMetadata_builder{AppId: sb.app}.Build()}
	answer.Result = s.outcome(sb) // not set while it runs: clients take any as an end
	return answer.Build(), nil
}

func seconds(n float32) time.Duration {
	return time.Duration(min(float64(n), 24*60*60) * float64(time.Second))
}

func (c *controlPlane) SandboxWaitV2(ctx context.Context, req *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	return c.await(ctx, req, false)
}

func (c *controlPlane) SandboxWait(ctx context.Context, req *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	return c.await(ctx, req, true)
}

func (c *controlPlane) terminate(ctx context.Context, id string, v1 bool) (*pb.SandboxTerminateResponse, error) {
	s := c.server
	sb, err := s.find(id, v1)
	if err != nil {
		return nil, err
	}
	if s.faults.told(ctx, Pretend) {
		return &pb.SandboxTerminateResponse{}, nil
	}
	s.mu.Lock()
	if existing := sb.result; existing != nil {
		s.mu.Unlock()
		return pb.SandboxTerminateResponse_builder{ExistingResult: clone(existing)}.Build(), nil
	}
	finish := s.finish(sb, pb.GenericResult_GENERIC_STATUS_TERMINATED, 137, "")
	s.mu.Unlock()
	finish()
	return &pb.SandboxTerminateResponse{}, nil
}

func (c *controlPlane) SandboxTerminateV2(ctx context.Context, req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	return c.terminate(ctx, req.GetSandboxId(), false)
}

func (c *controlPlane) SandboxTerminate(ctx context.Context, req *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	return c.terminate(ctx, req.GetSandboxId(), true)
}

func (c *controlPlane) taskID(id string, v1 bool) (*pb.SandboxGetTaskIdResponse, error) {
	s := c.server
	sb, err := s.find(id, v1)
	if err != nil {
		return nil, err
	}
	if result := s.outcome(sb); result != nil {
		return pb.SandboxGetTaskIdResponse_builder{TaskResult: result}.Build(), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending(sb) {
		return &pb.SandboxGetTaskIdResponse{}, nil
	}
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &sb.task}.Build(), nil
}

func (c *controlPlane) SandboxGetTaskIdV2(_ context.Context, req *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	return c.taskID(req.GetSandboxId(), false)
}

func (c *controlPlane) SandboxGetTaskId(_ context.Context, req *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) {
	return c.taskID(req.GetSandboxId(), true)
}

// access gives the router's address and a token for one task.
func (c *controlPlane) access(sandboxID, taskID string) (token string, err error) {
	s := c.server
	s.evict()
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.tasks[taskID]
	if sandboxID != "" {
		sb = s.sandboxes[sandboxID]
	}
	switch {
	case sb == nil:
		return "", status.Error(codes.NotFound, "there is no such sandbox or task")
	case sb.result != nil:
		return "", status.Error(codes.FailedPrecondition, "the sandbox has already finished")
	}
	return s.routerToken(sb.task), nil
}

func (c *controlPlane) SandboxGetCommandRouterAccess(_ context.Context, req *pb.SandboxGetCommandRouterAccessRequest) (*pb.SandboxGetCommandRouterAccessResponse, error) {
	token, err := c.access(req.GetSandboxId(), req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetCommandRouterAccessResponse_builder{Jwt: token, Url: c.server.routerURL()}.Build(), nil
}

func (c *controlPlane) TaskGetCommandRouterAccess(_ context.Context, req *pb.TaskGetCommandRouterAccessRequest) (*pb.TaskGetCommandRouterAccessResponse, error) {
	token, err := c.access("", req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return pb.TaskGetCommandRouterAccessResponse_builder{Jwt: token, Url: c.server.routerURL()}.Build(), nil
}

func (c *controlPlane) getTags(id string, v1 bool) (*pb.SandboxTagsGetResponse, error) {
	sb, err := c.server.find(id, v1)
	if err != nil {
		return nil, err
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return pb.SandboxTagsGetResponse_builder{Tags: tagList(sb.tags)}.Build(), nil
}

func (c *controlPlane) SandboxTagsGetV2(_ context.Context, req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	return c.getTags(req.GetSandboxId(), false)
}

func (c *controlPlane) SandboxTagsGet(_ context.Context, req *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	return c.getTags(req.GetSandboxId(), true)
}

// setTags replaces all tags.
func (c *controlPlane) setTags(req *pb.SandboxTagsSetRequest, v1 bool) (*emptypb.Empty, error) {
	sb, err := c.server.find(req.GetSandboxId(), v1)
	if err != nil {
		return nil, err
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if sb.result != nil {
		// What the vendor says of a sandbox that has ended is not known.
		return nil, status.Error(codes.FailedPrecondition, "the sandbox has already finished")
	}
	sb.tags = tagsOf(req.GetTags())
	return &emptypb.Empty{}, nil
}

func (c *controlPlane) SandboxTagsSetV2(_ context.Context, req *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	return c.setTags(req, false)
}

func (c *controlPlane) SandboxTagsSet(_ context.Context, req *pb.SandboxTagsSetRequest) (*emptypb.Empty, error) {
	return c.setTags(req, true)
}

func (c *controlPlane) fromName(req *pb.SandboxGetFromNameRequest, v1 bool) (*pb.SandboxGetFromNameResponse, error) {
	s := c.server
	s.evict()
	s.mu.Lock()
	defer s.mu.Unlock()
	var best *sandbox
	for _, sb := range s.sandboxes {
		a := s.apps[environmentOf(req.GetEnvironmentName())+"/"+req.GetAppName()]
		if a == nil || sb.app != a.id || sb.v1 != v1 || sb.name != req.GetSandboxName() || (sb.result != nil && !req.GetIncludeTerminated()) {
			continue
		}
		if best == nil || (best.result != nil && (sb.result == nil || sb.created.After(best.created))) {
			best = sb
		}
	}
	if best == nil {
		return nil, status.Errorf(codes.NotFound, "Sandbox with name '%s' not found", req.GetSandboxName())
	}
	metadata := pb.SandboxHandleMetadata_builder{AppId: best.app}
	if best.result != nil {
		metadata.Result = clone(best.result)
	}
	return pb.SandboxGetFromNameResponse_builder{SandboxId: best.id, Metadata: metadata.Build()}.Build(), nil
}

func (c *controlPlane) SandboxGetFromNameV2(_ context.Context, req *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	return c.fromName(req, false)
}

func (c *controlPlane) SandboxGetFromName(_ context.Context, req *pb.SandboxGetFromNameRequest) (*pb.SandboxGetFromNameResponse, error) {
	return c.fromName(req, true)
}

func (c *controlPlane) SandboxSetName(_ context.Context, req *pb.SandboxSetNameRequest) (*pb.SandboxSetNameResponse, error) {
	s := c.server
	sb, err := s.find(req.GetSandboxId(), false)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !validName.MatchString(req.GetName()):
		return nil, status.Errorf(codes.InvalidArgument, "Invalid sandbox name: %s", req.GetName())
	case sb.name == req.GetName():
		return &pb.SandboxSetNameResponse{}, nil
	case sb.name != "" || sb.result != nil:
		return nil, status.Error(codes.FailedPrecondition, "the sandbox has a name, or has finished")
	}
	for _, other := range s.sandboxes {
		if other.app == sb.app && other.name == req.GetName() && other.result == nil {
			return nil, status.Errorf(codes.AlreadyExists, "Sandbox with name '%s' already exists", req.GetName())
		}
	}
	sb.name = req.GetName()
	return &pb.SandboxSetNameResponse{}, nil
}

func (c *controlPlane) connectToken(req *pb.SandboxCreateConnectTokenRequest, v1 bool) (*pb.SandboxCreateConnectTokenResponse, error) {
	sb, err := c.server.find(req.GetSandboxId(), v1)
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateConnectTokenResponse_builder{
		Url: "https://" + strings.ToLower(sb.id[3:]) + "-c.modal.invalid", Token: mint("", alphanumeric, 32),
	}.Build(), nil
}

func (c *controlPlane) SandboxCreateConnectTokenV2(_ context.Context, req *pb.SandboxCreateConnectTokenRequest) (*pb.SandboxCreateConnectTokenResponse, error) {
	return c.connectToken(req, false)
}

func (c *controlPlane) SandboxCreateConnectToken(_ context.Context, req *pb.SandboxCreateConnectTokenRequest) (*pb.SandboxCreateConnectTokenResponse, error) {
	return c.connectToken(req, true)
}

func (c *controlPlane) exitSnapshot(req *pb.SandboxGetExitSnapshotRequest, v1 bool) (*pb.SandboxGetExitSnapshotResponse, error) {
	s := c.server
	sb, err := s.find(req.GetSandboxId(), v1)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case sb.definition.GetExperimentalOptionsV2()["enable_exit_snapshot"] == "":
		return nil, status.Error(codes.InvalidArgument, "the sandbox was made without enable_exit_snapshot")
	case sb.result == nil:
		return pb.SandboxGetExitSnapshotResponse_builder{Pending: &pb.SandboxGetExitSnapshotResponse_Pending{}}.Build(), nil
	}
	return pb.SandboxGetExitSnapshotResponse_builder{Success: pb.SandboxGetExitSnapshotResponse_Success_builder{ImageId: sb.exit}.Build()}.Build(), nil
}

func (c *controlPlane) SandboxGetExitSnapshotV2(_ context.Context, req *pb.SandboxGetExitSnapshotRequest) (*pb.SandboxGetExitSnapshotResponse, error) {
	return c.exitSnapshot(req, false)
}

func (c *controlPlane) SandboxGetExitSnapshot(_ context.Context, req *pb.SandboxGetExitSnapshotRequest) (*pb.SandboxGetExitSnapshotResponse, error) {
	return c.exitSnapshot(req, true)
}

// memory is a snapshot of memory: here, of files.
type memory struct {
	sandbox *sandbox
	image   string
}

func (c *controlPlane) SandboxSnapshotGet(_ context.Context, req *pb.SandboxSnapshotGetRequest) (*pb.SandboxSnapshotGetResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memories[req.GetSnapshotId()] == nil {
		return nil, status.Errorf(codes.NotFound, "no snapshot %q", req.GetSnapshotId())
	}
	return pb.SandboxSnapshotGetResponse_builder{
		SnapshotId: req.GetSnapshotId(), HandleMetadata: pb.SandboxSnapshotHandleMetadata_builder{IsV2: true}.Build(),
	}.Build(), nil
}

func (c *controlPlane) SandboxRestoreV2(ctx context.Context, req *pb.SandboxRestoreV2Request) (*pb.SandboxRestoreV2Response, error) {
	s := c.server
	s.mu.Lock()
	kept := s.memories[req.GetSnapshotId()]
	s.mu.Unlock()
	if kept == nil {
		return nil, status.Errorf(codes.NotFound, "no snapshot %q", req.GetSnapshotId())
	}
	definition := clone(kept.sandbox.definition)
	definition.SetImageId(kept.image)
	switch req.GetSandboxNameOverrideType() {
	case pb.SandboxRestoreRequest_SANDBOX_NAME_OVERRIDE_TYPE_STRING:
		definition.SetName(req.GetSandboxNameOverride())
	case pb.SandboxRestoreRequest_SANDBOX_NAME_OVERRIDE_TYPE_NONE:
		definition.ClearName()
	}
	env := []*pb.SecretSource{pb.SecretSource_builder{Env: pb.StringMap_builder{Contents: kept.sandbox.env}.Build()}.Build()}
	sb, err := s.create(ctx, definition, kept.sandbox.app, map[string]string{}, env, false)
	if err != nil {
		return nil, err
	}
	return pb.SandboxRestoreV2Response_builder{
		SandboxId: sb.id, TaskId: sb.task, Tunnels: sb.tunnels(false), Metadata: pb.SandboxHandleMetadata_builder{AppId: sb.app}.Build(),
		CommandRouterAccess: pb.CommandRouterAccess_builder{Jwt: s.routerToken(sb.task), Url: s.routerURL()}.Build(),
	}.Build(), nil
}

// SandboxGetLogs streams what the entrypoint of a sandbox of the first
// generation writes, for as long as the client asks for.
func (c *controlPlane) SandboxGetLogs(req *pb.SandboxGetLogsRequest, stream grpc.ServerStreamingServer[pb.TaskLogsBatch]) error {
	s := c.server
	sb, err := s.find(req.GetSandboxId(), true)
	if err != nil {
		return err
	}
	main := s.mainOf(stream.Context(), sb)
	if main == nil {
		<-sb.done
		return stream.Send(pb.TaskLogsBatch_builder{Eof: true, EntryId: "0-0"}.Build())
	}
	from := &main.stdout
	if req.GetFileDescriptor() == pb.FileDescriptor_FILE_DESCRIPTOR_STDERR {
		from = &main.stderr
	}
	offset := entryOffset(req.GetLastEntryId())
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if wait := seconds(req.GetTimeout()); wait > 0 {
		go func() {
			s.pause(ctx, wait)
			cancel()
		}()
	}
	err = from.follow(ctx, offset, func(data []byte) error {
		offset += uint64(len(data))
		return stream.Send(pb.TaskLogsBatch_builder{
			EntryId: entryID(offset), Items: []*pb.TaskLogs{pb.TaskLogs_builder{Data: string(data), FileDescriptor: req.GetFileDescriptor()}.Build()},
		}.Build())
	})
	if err != nil && ctx.Err() != nil {
		return nil // the turn is over, and the client asks again
	}
	if err != nil {
		return err
	}
	return stream.Send(pb.TaskLogsBatch_builder{Eof: true, EntryId: entryID(offset)}.Build())
}

func (c *controlPlane) SandboxStdinWrite(ctx context.Context, req *pb.SandboxStdinWriteRequest) (*pb.SandboxStdinWriteResponse, error) {
	s := c.server
	sb, err := s.find(req.GetSandboxId(), true)
	if err != nil {
		return nil, err
	}
	main := s.mainOf(ctx, sb)
	if main == nil {
		return nil, status.Error(codes.FailedPrecondition, "the sandbox has no entrypoint")
	}
	defer s.use(sb)()
	// The index counts the writes, from 1; one that came already is no news.
	main.mu.Lock()
	known := req.GetIndex() <= main.writes
	main.mu.Unlock()
	if known {
		return &pb.SandboxStdinWriteResponse{}, nil
	}
	main.mu.Lock()
	offset := main.written
	main.writes = req.GetIndex()
	main.mu.Unlock()
	if err := main.write(offset, req.GetInput(), req.GetEof()); err != nil {
		return nil, err
	}
	return &pb.SandboxStdinWriteResponse{}, nil
}

// unixSeconds is a time as the vendor writes it.
func unixSeconds(t time.Time) float64 {
	return float64(t.UnixMicro()) / 1e6
}
