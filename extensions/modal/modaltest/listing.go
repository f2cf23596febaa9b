// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

import (
	"context"
	"slices"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// list gives a page: the newest first, what was made strictly before a time,
// what has all the tags.
func (c *controlPlane) list(ctx context.Context, req *pb.SandboxListRequest, v1 bool) (*pb.SandboxListResponse, error) {
	s := c.server
	s.evict()
	fault, lies := s.faults.of(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := req.GetAppId(); id != "" {
		if _, err := s.appOf(id); err != nil {
			return nil, err
		}
	}
	wanted := tagsOf(req.GetTags())
	var found []*sandbox
	for _, sb := range s.sandboxes {
		if sb.v1 == v1 && (sb.result == nil || req.GetIncludeFinished()) && holds(sb.tags, wanted) &&
			(req.GetAppId() == "" || sb.app == req.GetAppId()) && (req.GetAppId() != "" || sb.environment == environmentOf(req.GetEnvironmentName())) {
			found = append(found, sb)
		}
	}
	slices.SortFunc(found, func(a, b *sandbox) int {
		if order := b.created.Compare(a.created); order != 0 {
			return order
		}
		return slices.Compare([]byte(a.id), []byte(b.id))
	})
	before := req.GetBeforeTimestamp()
	first := before == 0
	if lies && fault.Lie == RepeatPage {
		before = 0
	}
	if before != 0 {
		found = slices.DeleteFunc(found, func(sb *sandbox) bool { return unixSeconds(sb.created) >= before })
	}
	page := found[:min(len(found), s.options.Page)]
	switch {
	case !lies:
	case fault.Lie == StaleList:
		page = slices.DeleteFunc(slices.Clone(page), func(sb *sandbox) bool { return sb.created.After(fault.since) })
	case fault.Lie == DropPage && !first:
		page = nil
	case fault.Lie == SkipPage && !first:
		page = found[min(len(found), s.options.Page):]
		page = page[:min(len(page), s.options.Page)]
	case fault.Lie == TooLong:
		return nil, status.Error(codes.DeadlineExceeded, "the listing took too long")
	}
	var infos []*pb.SandboxInfo
	for _, sb := range page {
		infos = append(infos, s.info(sb, lies && fault.Lie == NoTags))
	}
	return pb.SandboxListResponse_builder{Sandboxes: infos}.Build(), nil
}

// info is what a listing says of a sandbox. The caller holds the lock.
func (s *Server) info(sb *sandbox, noTags bool) *pb.SandboxInfo {
	info := pb.SandboxInfo_builder{Id: sb.id, AppId: sb.app, CreatedAt: unixSeconds(sb.created)}
	if !noTags {
		info.Tags = tagList(sb.tags)
	}
	if s.options.NoInfo {
		return info.Build()
	}
	info.Name, info.ImageId, info.TimeoutSecs = sb.name, sb.definition.GetImageId(), sb.definition.GetTimeoutSecs()
	info.Tunnels = sb.tunnels(true)
	task := pb.TaskInfo_builder{Id: sb.task, StartedAt: unixSeconds(sb.scheduled), SandboxId: sb.id}
	if sb.result != nil {
		task.FinishedAt, task.Result = unixSeconds(sb.finished), clone(sb.result)
	}
	info.TaskInfo = task.Build()
	if idle := sb.definition.GetIdleTimeoutSecs(); idle > 0 {
		info.IdleTimeoutSecs = &idle
	}
	return info.Build()
}

func (c *controlPlane) SandboxListV2(ctx context.Context, req *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	return c.list(ctx, req, false)
}

func (c *controlPlane) SandboxList(ctx context.Context, req *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	return c.list(ctx, req, true)
}
