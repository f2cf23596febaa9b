// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

// Images, secrets, volumes and apps: what a sandbox is made from.

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// image is what sandboxes are made from. Only one that a snapshot made has
// files of its own.
type image struct {
	id       string
	dir      string
	snapshot bool
	expires  time.Time // zero is never
	failed   string    // why the build failed
}

// snapshotLife is how long the image of a snapshot is kept when nobody says.
const snapshotLife = 30 * 24 * time.Hour

func (i *image) expired(now time.Time) bool { return !i.expires.IsZero() && !now.Before(i.expires) }

// environmentOf returns the name of an environment; empty is the default one.
func environmentOf(name string) string {
	if name == "" {
		return "main"
	}
	return name
}

// lookup returns an image that can be used. The caller holds the lock.
func (s *Server) lookup(id string) (*image, error) {
	i := s.images[id]
	if i == nil || i.expired(s.now()) {
		return nil, status.Errorf(codes.NotFound, "Image with ID %s not found", id)
	}
	return i, nil
}

func (c *controlPlane) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: c.server.authToken()}.Build(), nil
}

func (c *controlPlane) TokenInfoGet(context.Context, *pb.TokenInfoGetRequest) (*pb.TokenInfoGetResponse, error) {
	return pb.TokenInfoGetResponse_builder{TokenId: "ak-test", WorkspaceId: "ac-test", WorkspaceName: "test"}.Build(), nil
}

func (c *controlPlane) AppGetOrCreate(_ context.Context, req *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	environment := environmentOf(req.GetEnvironmentName())
	key := environment + "/" + req.GetAppName()
	found := s.apps[key]
	if found == nil || found.stopped {
		if req.GetObjectCreationType() != pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING {
			return nil, status.Errorf(codes.NotFound, "App '%s' not found in environment '%s'", req.GetAppName(), environment)
		}
		found = &app{id: mint("ap-", alphanumeric, 22), name: req.GetAppName(), environment: environment}
		s.apps[key] = found
	}
	return pb.AppGetOrCreateResponse_builder{AppId: found.id}.Build(), nil
}

// appOf returns an app by its id. The caller holds the lock.
func (s *Server) appOf(id string) (*app, error) {
	for _, a := range s.apps {
		if a.id == id && !a.stopped {
			return a, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "App with ID %s not found", id)
}

func (c *controlPlane) AppList(_ context.Context, req *pb.AppListRequest) (*pb.AppListResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*pb.AppListResponse_AppListItem
	for _, a := range s.apps {
		if a.environment == environmentOf(req.GetEnvironmentName()) && !a.stopped {
			list = append(list, pb.AppListResponse_AppListItem_builder{AppId: a.id, Name: a.name, Description: a.name, State: pb.AppState_APP_STATE_DEPLOYED}.Build())
		}
	}
	return pb.AppListResponse_builder{Apps: list}.Build(), nil
}

func (c *controlPlane) AppStop(_ context.Context, req *pb.AppStopRequest) (*emptypb.Empty, error) {
	s := c.server
	s.mu.Lock()
	a, err := s.appOf(req.GetAppId())
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	a.stopped = true
	var due []func()
	for _, sb := range s.sandboxes {
		if sb.app == a.id && sb.result == nil {
			due = append(due, s.finish(sb, pb.GenericResult_GENERIC_STATUS_TERMINATED, 137, "the app was stopped"))
		}
	}
	s.mu.Unlock()
	for _, finish := range due {
		finish()
	}
	return &emptypb.Empty{}, nil
}

func (c *controlPlane) EnvironmentGetOrCreate(_ context.Context, req *pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	return pb.EnvironmentGetOrCreateResponse_builder{
		EnvironmentId: "en-0000000000000000000000",
		Metadata: pb.EnvironmentMetadata_builder{
			Name: environmentOf(req.GetDeploymentName()), Settings: pb.EnvironmentSettings_builder{ImageBuilderVersion: "2025.06"}.Build(),
		}.Build(),
	}.Build(), nil
}

// ImageGetOrCreate makes an image at once, or has the client join its build
// where [Lie] JoinBuild says so. A registry in the domain "invalid" has none.
func (c *controlPlane) ImageGetOrCreate(ctx context.Context, req *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.appOf(req.GetAppId()); err != nil {
		return nil, err
	}
	commands := req.GetImage().GetDockerfileCommands()
	if len(commands) == 0 && len(req.GetImage().GetBaseImages()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the image has no commands")
	}
	// The same recipe is the same image.
	base := []string{}
	for _, b := range req.GetImage().GetBaseImages() {
		base = append(base, b.GetImageId())
	}
	recipe, _ := json.Marshal([]any{commands, base, req.GetBuilderVersion()}) // strings always encode
	id := s.recipes[string(recipe)]
	if id == "" || req.GetForceBuild() {
		id = mint("im-", alphanumeric, 22)
		made := &image{id: id}
		for _, b := range base {
			from, err := s.lookup(b)
			if err != nil {
				return nil, err
			}
			made.dir = from.dir
		}
		for _, line := range commands {
			if name, ok := strings.CutPrefix(line, "FROM "); ok && strings.Contains(strings.Split(name, "/")[0], ".invalid") || strings.HasPrefix(line, "RUN false") {
				made.failed = fmt.Sprintf("Image build for %s failed: %q", id, line)
			}
		}
		s.images[id] = made
		s.recipes[string(recipe)] = id
	}
	answer := pb.ImageGetOrCreateResponse_builder{ImageId: id, Metadata: pb.ImageMetadata_builder{}.Build()}
	if !s.faults.told(ctx, JoinBuild) {
		answer.Result = s.images[id].built()
	}
	return answer.Build(), nil
}

func (i *image) built() *pb.GenericResult {
	if i.failed != "" {
		return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_FAILURE, Exception: i.failed}.Build()
	}
	return pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}.Build()
}

func (c *controlPlane) ImageJoinStreaming(req *pb.ImageJoinStreamingRequest, stream grpc.ServerStreamingServer[pb.ImageJoinStreamingResponse]) error {
	s := c.server
	s.mu.Lock()
	found, err := s.lookup(req.GetImageId())
	s.mu.Unlock()
	if err != nil {
		return err
	}
	lines := []*pb.TaskLogs{pb.TaskLogs_builder{Data: "=> step 1\n"}.Build()}
	if err := stream.Send(pb.ImageJoinStreamingResponse_builder{TaskLogs: lines, EntryId: "1-0"}.Build()); err != nil {
		return err
	}
	return stream.Send(pb.ImageJoinStreamingResponse_builder{Result: found.built(), EntryId: "2-0", Eof: true, Metadata: pb.ImageMetadata_builder{}.Build()}.Build())
}

func (c *controlPlane) ImageFromId(_ context.Context, req *pb.ImageFromIdRequest) (*pb.ImageFromIdResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := s.lookup(req.GetImageId())
	if err != nil {
		return nil, err
	}
	return pb.ImageFromIdResponse_builder{ImageId: found.id, Metadata: pb.ImageMetadata_builder{}.Build()}.Build(), nil
}

// published is the name that an image is published under: with its environment
// where the name has none, and the tag latest where it has none.
func published(environment, name string) string {
	if !strings.Contains(name, "/") {
		name = environmentOf(environment) + "/" + name
	}
	if !strings.Contains(name[strings.LastIndexByte(name, '/'):], ":") {
		name += ":latest"
	}
	return name
}

func (c *controlPlane) ImagePublish(_ context.Context, req *pb.ImagePublishRequest) (*pb.ImagePublishResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := s.lookup(req.GetImageId())
	if err != nil {
		return nil, err
	}
	s.published[published(req.GetEnvironmentName(), req.GetTag())] = found.id
	return pb.ImagePublishResponse_builder{ImageId: found.id, RevisionId: mint("ir-", alphanumeric, 22)}.Build(), nil
}

func (c *controlPlane) ImageGetByTag(_ context.Context, req *pb.ImageGetByTagRequest) (*pb.ImageGetByTagResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := s.lookup(s.published[published(req.GetEnvironmentName(), req.GetTag())])
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "Image '%s' not found", req.GetTag())
	}
	return pb.ImageGetByTagResponse_builder{ImageId: found.id}.Build(), nil
}

func (c *controlPlane) ImageDelete(_ context.Context, req *pb.ImageDeleteRequest) (*emptypb.Empty, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.lookup(req.GetImageId()); err != nil {
		return nil, err
	}
	delete(s.images, req.GetImageId())
	for recipe, id := range s.recipes {
		if id == req.GetImageId() {
			delete(s.recipes, recipe)
		}
	}
	return &emptypb.Empty{}, nil
}

func (c *controlPlane) SecretGetOrCreate(_ context.Context, req *pb.SecretGetOrCreateRequest) (*pb.SecretGetOrCreateResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := func(found *secret) (*pb.SecretGetOrCreateResponse, error) {
		for _, key := range req.GetRequiredKeys() {
			if _, ok := found.env[key]; !ok {
				return nil, status.Errorf(codes.NotFound, "Secret is missing key(s): %s", key)
			}
		}
		return pb.SecretGetOrCreateResponse_builder{SecretId: found.id}.Build(), nil
	}
	if req.GetObjectCreationType() == pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL {
		made := &secret{id: mint("st-", alphanumeric, 22), env: maps.Clone(req.GetEnvDict())}
		s.secrets[made.id] = made
		return answer(made)
	}
	key := environmentOf(req.GetEnvironmentName()) + "/" + req.GetDeploymentName()
	found := s.secrets[key]
	if found == nil && req.GetObjectCreationType() == pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED {
		return nil, status.Errorf(codes.NotFound, "Secret '%s' not found", req.GetDeploymentName())
	}
	if found == nil {
		found = &secret{id: mint("st-", alphanumeric, 22), env: maps.Clone(req.GetEnvDict())}
		s.secrets[key] = found
	}
	return answer(found)
}

// secretEnv returns what a secret holds. The caller holds the lock.
func (s *Server) secretEnv(id string) (map[string]string, error) {
	for _, found := range s.secrets {
		if found.id == id {
			return found.env, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "Secret with ID %s not found", id)
}

func (c *controlPlane) VolumeGetOrCreate(_ context.Context, req *pb.VolumeGetOrCreateRequest) (*pb.VolumeGetOrCreateResponse, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	key := environmentOf(req.GetEnvironmentName()) + "/" + req.GetDeploymentName()
	found := s.volumes[key]
	if found == nil {
		if req.GetObjectCreationType() == pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED {
			return nil, status.Errorf(codes.NotFound, "Volume '%s' not found", req.GetDeploymentName())
		}
		dir, err := s.newDir("volume")
		if err != nil {
			return nil, err
		}
		found = &volume{id: mint("vo-", alphanumeric, 22), name: req.GetDeploymentName(), dir: dir}
		s.volumes[key] = found
	}
	return pb.VolumeGetOrCreateResponse_builder{VolumeId: found.id, Metadata: pb.VolumeMetadata_builder{Name: found.name}.Build()}.Build(), nil
}

// environmentFrom returns the variables that secrets and maps give, the later
// before the earlier. The caller holds the lock.
func (s *Server) environmentFrom(ids []string, sources []*pb.SecretSource, more ...map[string]string) (map[string]string, error) {
	env := map[string]string{}
	if len(sources) == 0 {
		for _, id := range ids {
			held, err := s.secretEnv(id)
			if err != nil {
				return nil, err
			}
			maps.Copy(env, held)
		}
	}
	for _, source := range sources {
		if source.HasEnv() {
			maps.Copy(env, source.GetEnv().GetContents())
			continue
		}
		held, err := s.secretEnv(source.GetSecretId())
		if err != nil {
			return nil, err
		}
		maps.Copy(env, held)
	}
	for _, given := range more {
		maps.Copy(env, given)
	}
	return env, nil
}
