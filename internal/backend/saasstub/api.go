// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"
)

// The vendor's side of the boundary: types and calls as a client library of
// a vendor would have them. Nothing here knows of sandboxer.

// State is the vendor's state of a box.
type State string

// The states of a box.
const (
	Starting State = "starting"
	Running  State = "running"
	Paused   State = "paused"
	Stopped  State = "stopped" // its files are gone; it is listed until it is deleted
)

// Why a box is stopped.
const (
	StopTimeout = "timeout"
	StopIdle    = "idle"
	StopDied    = "died"
)

// Box is a sandbox as the vendor shows it.
type Box struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"` // unique in the account
	Tags        map[string]string `json:"tags"`
	State       State             `json:"state"`
	StateReason string            `json:"state_reason,omitempty"`
	CreatedAt   time.Time         `json:"created_at"`
	StopAt      time.Time         `json:"stop_at"` // the vendor's own deadline
	StopBy      time.Time         `json:"stop_by"` // StopAt is never later; zero is no bound
	OnStop      string            `json:"on_stop"` // stop, pause or snapshot
	// IdleStop stops a box that was not used for so long; zero does not. A
	// command and the moving of files are uses, see UsedAt.
	IdleStop    time.Duration `json:"idle_stop"`
	UsedAt      time.Time     `json:"used_at"`
	KeepImage   time.Duration `json:"keep_image"` // of on_stop snapshot
	PausedAt    time.Time     `json:"paused_at"`  // by on_stop pause; zero when it was not
	StoppedInto string        `json:"stopped_into,omitempty"`
	Runs        int64         `json:"runs"`
	Version     int64         `json:"version"` // for If-Match
	ServerTime  time.Time     `json:"server_time"`
}

func (b Box) clone() Box {
	b.Tags = maps.Clone(b.Tags)
	return b
}

// Image is a snapshot as the vendor shows it.
type Image struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"` // unique in the account
	Tags      map[string]string `json:"tags"`
	Memory    bool              `json:"memory"`
	Secrets   bool              `json:"secrets"` // memory that held secret values
	Size      int64             `json:"size"`
	Digest    string            `json:"digest"`
	CreatedAt time.Time         `json:"created_at"`
	DeleteAt  time.Time         `json:"delete_at"` // shown only: the vendor deletes nothing by itself
	Version   int64             `json:"version"`
}

func (i Image) clone() Image {
	i.Tags = maps.Clone(i.Tags)
	return i
}

// CreateBoxRequest asks for a new box.
type CreateBoxRequest struct {
	Name      string
	Tags      map[string]string
	FromID    string // image
	Env       map[string]string
	Secrets   map[string]string // files in /run/secrets, never stored
	Files     map[string]BoxFile
	Command   []string
	Workdir   string
	StopAt    time.Time
	MaxLife   time.Duration // from the creation; zero is no bound
	OnStop    string
	IdleStop  time.Duration
	KeepImage time.Duration
}

// BoxFile is a file of a box, or a directory. A directory that has files needs
// no entry of its own: an entry gives it a mode, and keeps it when it is empty.
type BoxFile struct {
	Content []byte `json:"content"`
	Mode    int64  `json:"mode"`
	Dir     bool   `json:"dir,omitempty"`
}

// UpdateRequest changes a box or an image when it still has the version.
type UpdateRequest struct {
	IfVersion int64
	Tags      map[string]string // merged
	Until     time.Time         // StopAt or DeleteAt; zero leaves it
}

// ListRequest asks for one page, oldest first.
type ListRequest struct {
	Tags   map[string]string // all must match
	Cursor string
	Limit  int
}

// Page is one page of a listing.
type Page[T any] struct {
	Items []T
	Next  string // cursor of the next page; empty on the last
	Total int    // that match, now
}

// CommandRequest runs a command in a box.
type CommandRequest struct {
	Command []string
	Env     map[string]string
	Workdir string
	Timeout time.Duration
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
}

// CommandResult is the end of a command.
type CommandResult struct {
	ExitCode int
	TimedOut bool
}

// API is the vendor's API. [Server] implements it honestly; faults go
// between it and its client.
type API interface {
	CreateBox(ctx context.Context, req CreateBoxRequest) (Box, error)
	GetBox(ctx context.Context, id string) (Box, error)
	ListBoxes(ctx context.Context, req ListRequest) (Page[Box], error)
	UpdateBox(ctx context.Context, id string, req UpdateRequest) (Box, error)
	DeleteBox(ctx context.Context, id string) error
	PauseBox(ctx context.Context, id string) (Box, error)
	ResumeBox(ctx context.Context, id string) (Box, error)
	RunCommand(ctx context.Context, id string, req CommandRequest) (CommandResult, error)
	PutFiles(ctx context.Context, id string, files map[string]BoxFile) error
	GetFiles(ctx context.Context, id, path string) (map[string]BoxFile, error)
	GetLog(ctx context.Context, id string) ([]byte, error)
	CreateImage(ctx context.Context, boxID string, image Image) (Image, error)
	GetImage(ctx context.Context, id string) (Image, error)
	ListImages(ctx context.Context, req ListRequest) (Page[Image], error)
	UpdateImage(ctx context.Context, id string, req UpdateRequest) (Image, error)
	DeleteImage(ctx context.Context, id string) error
	DownloadImage(ctx context.Context, id string) (map[string]BoxFile, error)
	UploadImage(ctx context.Context, image Image, files map[string]BoxFile) (Image, error)
}

// APIError is an answer of the vendor that is not a success. Status 0 means
// that there was no answer: the request may have been carried out.
type APIError struct {
	Status     int
	Code       string
	Message    string
	RetryAfter time.Duration // zero when the vendor named none
}

// The codes that the client tells apart.
const (
	CodeNotFound     = "not_found"
	CodeNameTaken    = "name_taken"
	CodeVersion      = "version_mismatch"
	CodeInTransition = "in_transition"
	CodeWrongState   = "wrong_state"
	CodeRateLimited  = "rate_limited"
)

// Error is the answer in one line.
func (e *APIError) Error() string {
	if e.Status == 0 {
		return "no answer: " + e.Message
	}
	return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Message)
}

func hasCode(err error, code string) bool {
	var api *APIError
	return errors.As(err, &api) && api.Code == code
}
