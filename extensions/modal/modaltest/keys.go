// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

// Who may call: a token's id and secret and a short-lived token for the control
// plane, a token of one task for the router.

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

type keys [32]byte

// claims are what a token says.
type claims struct {
	Task string `json:"task,omitempty"`
	// Exp is when it ends, in whole seconds: with a fraction the Go client
	// does not read it. It is of the machine's clock, as the clients' is.
	Exp int64 `json:"exp"`
}

func (k *keys) sign(c claims) string {
	payload, _ := json.Marshal(c) // strings and numbers always encode
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(payload)
	return text + "." + k.signature(text)
}

func (k *keys) signature(text string) string {
	mac := hmac.New(sha256.New, k[:])
	mac.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// read returns the claims of a token that is ours and has not ended.
func (k *keys) read(token string) (c claims, ok bool) {
	i := strings.LastIndexByte(token, '.')
	if i < 0 || !hmac.Equal([]byte(token[i+1:]), []byte(k.signature(token[:i]))) {
		return c, false
	}
	_, payload, _ := strings.Cut(token[:i], ".")
	decoded, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil || json.Unmarshal(decoded, &c) != nil {
		return c, false
	}
	return c, time.Now().Unix() < c.Exp
}

// authTokenLife is how long the token of the control plane holds, routerLife
// that of a task.
const (
	authTokenLife = 20 * time.Minute
	routerLife    = 10 * time.Minute
)

func (s *Server) authToken() string {
	return s.keys.sign(claims{Exp: time.Now().Add(authTokenLife).Unix()})
}

func (s *Server) routerToken(task string) string {
	return s.keys.sign(claims{Task: task, Exp: time.Now().Add(routerLife).Unix()})
}

const routerService = "/modal.task_command_router.TaskCommandRouter/"

// authorize lets a call pass, or says why not. Headers can come twice: the
// first counts.
func (s *Server) authorize(ctx context.Context, method string, stream bool) error {
	md, _ := metadata.FromIncomingContext(ctx)
	first := func(name string) string {
		if values := md.Get(name); len(values) > 0 {
			return values[0]
		}
		return ""
	}
	if strings.HasPrefix(method, routerService) {
		token, _ := strings.CutPrefix(first("authorization"), "Bearer ")
		if _, ok := s.keys.read(token); !ok {
			return status.Error(codes.Unauthenticated, "the token of the task is not valid")
		}
		return nil
	}
	id, secret := first("x-modal-token-id"), first("x-modal-token-secret")
	if id == "" || secret == "" || (len(s.options.Tokens) > 0 && (s.options.Tokens[id] == "" || s.options.Tokens[id] != secret)) {
		return status.Error(codes.Unauthenticated, "Token missing or invalid. Run `modal token new`")
	}
	// The Go client sends none with its streams.
	if stream || strings.HasSuffix(method, "/AuthTokenGet") {
		return nil
	}
	if _, ok := s.keys.read(first("x-modal-auth-token")); !ok {
		return status.Error(codes.Unauthenticated, "the auth token is not valid")
	}
	return nil
}

func (s *Server) authorizeUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	s.keep(ctx, info.FullMethod, req)
	if err := s.authorize(ctx, info.FullMethod, false); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Server) authorizeStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	s.keep(stream.Context(), info.FullMethod, nil)
	if err := s.authorize(stream.Context(), info.FullMethod, true); err != nil {
		return err
	}
	return handler(srv, stream)
}

// maxRequests bounds what is kept of a server that runs for long.
const maxRequests = 100_000

func (s *Server) keep(ctx context.Context, method string, message any) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) < maxRequests {
		s.requests = append(s.requests, Request{Method: short(method), Message: message, Metadata: md.Copy()})
	}
}

// short returns a method without its service.
func short(method string) string { return method[strings.LastIndexByte(method, '/')+1:] }

// taskOf returns the task that a call of the router may touch.
func (s *Server) taskOf(ctx context.Context, id string) (*sandbox, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	token := ""
	if values := md.Get("authorization"); len(values) > 0 {
		token, _ = strings.CutPrefix(values[0], "Bearer ")
	}
	c, _ := s.keys.read(token)
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.tasks[id]
	switch {
	case c.Task != id:
		return nil, status.Error(codes.PermissionDenied, "the token is of another task")
	case sb == nil:
		return nil, status.Errorf(codes.NotFound, "no task %q", id)
	}
	return sb, nil
}
