// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"context"
	"io"
	"time"
)

// Extension is what every extension implements.
//
// Every method honours its context: it returns soon after the context is
// cancelled. A method that fails returns an error that wraps one of this
// package's sentinel errors where one fits (see [Error]).
type Extension interface {
	// Describe returns who the extension is and what it promises. It is
	// static: it uses no network, no configuration and no machine state.
	Describe(ctx context.Context, opts DescribeOptions) (DescribeResult, error)

	// Configure hands over the configuration of one backend. It is called
	// once, before any method but Describe, and makes no connection.
	Configure(ctx context.Context, opts ConfigureOptions) (ConfigureResult, error)

	// Probe tells whether the backend is usable from here and, if not, why
	// and what to do about it. A backend that is not usable is a result, not
	// an error.
	Probe(ctx context.Context, opts ProbeOptions) (ProbeResult, error)

	// Create makes one sandbox and returns as soon as it has a ref: it does
	// not wait for the readiness check. Creating an id a second time returns
	// [ErrConflict] and changes nothing.
	Create(ctx context.Context, opts CreateOptions) (CreateResult, error)

	// Get returns one sandbox. [ErrNotFound] means that its absence was
	// observed; a backend that can't be asked answers [ErrUnreachable].
	Get(ctx context.Context, opts GetOptions) (GetResult, error)

	// List returns every sandbox of one fleet, whatever its status, in one
	// round of calls however many there are.
	List(ctx context.Context, opts ListOptions) (ListResult, error)

	// Extend moves a deadline later. It is a durable compare-and-swap on the
	// lease's generation, never shortens, and returns what was granted. Past
	// the deadline or after a claim it answers [ErrExpired]; when the
	// generation differs, [ErrConflict] with the present lease.
	Extend(ctx context.Context, opts ExtendOptions) (ExtendResult, error)

	// Expire moves a deadline earlier, down to now. It is the same
	// compare-and-swap as Extend and never lengthens.
	Expire(ctx context.Context, opts ExpireOptions) (ExpireResult, error)

	// Claim takes a lease for destruction by the same compare-and-swap:
	// exactly one of an extend and a claim wins. After it, nothing extends.
	// Claiming a lease that is already claimed succeeds: a claim whose holder
	// died is continued by whoever comes next.
	Claim(ctx context.Context, opts ClaimOptions) (ClaimResult, error)

	// Destroy removes a sandbox and everything that it owns, from any
	// status, and returns only after absence was observed by ref and by
	// label. Destroying what is not there succeeds. What could not be removed
	// is named in the result's Leftovers together with an error.
	Destroy(ctx context.Context, opts DestroyOptions) (DestroyResult, error)
}

// Execer is implemented by extensions that can run a command in a sandbox.
type Execer interface {
	// Exec runs one command and returns when it has ended. A command that
	// ran and failed is a result with its exit code, not an error. When the
	// timeout or the context ends first, the command's whole process tree in
	// the sandbox is killed before Exec returns.
	Exec(ctx context.Context, opts ExecOptions) (ExecResult, error)
}

// Copier is implemented by extensions that can move files in and out.
type Copier interface {
	// CopyIn unpacks a tar stream into a directory of the sandbox.
	CopyIn(ctx context.Context, opts CopyInOptions) (CopyInResult, error)
	// CopyOut writes a file or a directory of the sandbox as a tar stream.
	CopyOut(ctx context.Context, opts CopyOutOptions) (CopyOutResult, error)
}

// Logger is implemented by extensions that keep the main process's output.
type Logger interface {
	// Logs writes one of the logs, usually the output of the main process. With Follow it returns
	// when the sandbox ends or the context does.
	Logs(ctx context.Context, opts LogsOptions) (LogsResult, error)
}

// Pauser is implemented by extensions that can suspend a sandbox. A paused
// sandbox keeps its deadline.
type Pauser interface {
	Pause(ctx context.Context, opts PauseOptions) (PauseResult, error)
	Resume(ctx context.Context, opts ResumeOptions) (ResumeResult, error)
}

// Preparer is implemented by extensions that can do work for a profile ahead
// of the first create: pull, build, unpack. Preparing twice is cheap.
type Preparer interface {
	Prepare(ctx context.Context, opts PrepareOptions) (PrepareResult, error)
}

// Snapshotter is implemented by extensions that can checkpoint a sandbox and
// make new sandboxes from the checkpoint.
type Snapshotter interface {
	// Snapshot checkpoints a sandbox, which keeps running where the
	// capability document says so. It returns when the snapshot is durable.
	Snapshot(ctx context.Context, opts SnapshotOptions) (SnapshotResult, error)
	GetSnapshot(ctx context.Context, opts GetSnapshotOptions) (GetSnapshotResult, error)
	ListSnapshots(ctx context.Context, opts ListSnapshotsOptions) (ListSnapshotsResult, error)
	// ExtendSnapshot moves a snapshot's retention later; it never shortens.
	ExtendSnapshot(ctx context.Context, opts ExtendSnapshotOptions) (ExtendSnapshotResult, error)
	// DeleteSnapshot removes a snapshot; deleting what is not there succeeds.
	DeleteSnapshot(ctx context.Context, opts DeleteSnapshotOptions) (DeleteSnapshotResult, error)
	// Restore makes a new sandbox from a snapshot. It is Create with another
	// source and follows the same rules; a snapshot can be restored as often
	// as wanted.
	Restore(ctx context.Context, opts RestoreOptions) (CreateResult, error)
}

// DescribeOptions are the options of [Extension.Describe].
type DescribeOptions struct{}

// DescribeResult says who an extension is and what it promises.
type DescribeResult struct {
	Name         string       `json:"name"`         // as in `extension = "NAME"` and in the binary's name
	Version      string       `json:"version"`      // of the extension, semver
	Summary      string       `json:"summary"`      // one line
	ConfigSchema []ConfigKey  `json:"config_keys"`  // what Configure takes
	Capabilities Capabilities `json:"capabilities"` // static document
}

// ConfigKey describes one key of an extension's configuration.
type ConfigKey struct {
	Name        string `json:"name"`
	Type        string `json:"type"` // string, bool, number, list, map
	Description string `json:"description"`
	Required    bool   `json:"required"`
	Sensitive   bool   `json:"sensitive"`
}

// ConfigureOptions are the options of [Extension.Configure].
type ConfigureOptions struct {
	Backend string // the backend's name, for messages
	Fleet   string // the fleet that the caller acts for
	// Config is a JSON object with the keys of ConfigSchema. An unknown key
	// is [ErrInvalid] at its path.
	Config []byte
}

// ConfigureResult is the result of [Extension.Configure].
type ConfigureResult struct{}

// ProbeOptions are the options of [Extension.Probe].
type ProbeOptions struct{}

// ProbeResult is the result of [Extension.Probe].
type ProbeResult struct {
	Usable bool   `json:"usable"`
	Reason string `json:"reason,omitempty"` // why not; empty when usable
	Advice string `json:"advice,omitempty"` // what to do about it
	// Capabilities is the document for this machine: the static one with
	// every class that depends on the machine decided.
	Capabilities Capabilities `json:"capabilities"`
	Details      []Detail     `json:"details,omitempty"` // what was looked at, for people
	// Instance names what the backend is reached at, so that what was found out
	// there counts nowhere else: an engine by its id, a machine, an account. It
	// stays the same for as long as that is the same one, holds no secret, and
	// is empty where it can't be told.
	Instance string `json:"instance,omitempty"`
}

// Detail is one observation of a probe.
type Detail struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Target names one sandbox. Ref may be empty when only the id is known: the
// extension then finds the sandbox by its label.
type Target struct {
	ID    string
	Ref   string
	Fleet string // an object of another fleet is never touched
}

// CreateOptions are the options of [Extension.Create].
type CreateOptions struct {
	ID       string   // made by the caller; also the intent id
	Identity Identity // travels as labels in the create call itself
	Profile  Profile  // complete and validated
	// ExpiresAt and MaxExpiresAt are the lease to begin with. A zero
	// MaxExpiresAt means that the deadline can't be extended without bound:
	// it is then equal to ExpiresAt.
	ExpiresAt    time.Time
	MaxExpiresAt time.Time
	OnExpiry     OnExpiry
	// IdleTimeout is the second clock: without activity for this long the
	// sandbox ends as at its deadline, which it never outlives. Zero is none.
	IdleTimeout time.Duration
	// ExpirySnapshotTTL is how long the snapshot of [OnExpirySnapshot] is
	// kept, from when it is made; zero is [DefaultExpirySnapshotTTL].
	ExpirySnapshotTTL time.Duration
	// PausedTTL is how long a sandbox is kept that [OnExpiryPause] paused,
	// see [PauseLease]; zero is [DefaultPausedTTL].
	PausedTTL time.Duration
	Env       map[string]string // added to the profile's
	Secrets   map[string]Secret // each becomes /run/secrets/NAME
	Event     EventRef          // the ledger event behind this lease record
	// Progress, when set, is told about long work: pulling, unpacking.
	Progress func(Progress)
}

// Progress is one step of long work.
type Progress struct {
	Phase   string // pull, unpack, boot, snapshot
	Message string
	Done    int64 // of Total, in bytes; both zero when not known
	Total   int64
}

// CreateResult is the result of [Extension.Create] and [Snapshotter.Restore].
type CreateResult struct {
	Sandbox Sandbox
}

// GetOptions are the options of [Extension.Get].
type GetOptions struct{ Target Target }

// GetResult is the result of [Extension.Get].
type GetResult struct{ Sandbox Sandbox }

// ListOptions are the options of [Extension.List].
type ListOptions struct {
	Fleet string
}

// ListResult is the result of [Extension.List].
type ListResult struct {
	Sandboxes []Sandbox
	// Incomplete says why the listing may lack something; empty when it is
	// complete. An incomplete listing never proves absence.
	Incomplete string
	// Unreadable are the ids of objects that are there and can't be told
	// about, whatever their fleet: their absence is not proven, everything
	// else's is.
	Unreadable []string
}

// ExtendOptions are the options of [Extension.Extend].
type ExtendOptions struct {
	Target     Target
	Generation int64 // of the lease that the caller saw
	ExpiresAt  time.Time
	Event      EventRef
}

// ExtendResult is the result of [Extension.Extend].
type ExtendResult struct {
	Lease Lease // as granted; ExpiresAt may be earlier than asked
}

// ExpireOptions are the options of [Extension.Expire].
type ExpireOptions struct {
	Target     Target
	Generation int64
	ExpiresAt  time.Time // a past time means now
	Event      EventRef
}

// ExpireResult is the result of [Extension.Expire].
type ExpireResult struct{ Lease Lease }

// ClaimOptions are the options of [Extension.Claim].
type ClaimOptions struct {
	Target     Target
	Generation int64
	Holder     string // who claims, for people
	// OnlyExpired makes the claim fail with [ErrConflict] while neither the
	// deadline nor the idle timeout has passed by the backend's clock. The
	// reaper sets it.
	OnlyExpired bool
	Event       EventRef
}

// ClaimResult is the result of [Extension.Claim].
type ClaimResult struct{ Lease Lease }

// DestroyOptions are the options of [Extension.Destroy].
type DestroyOptions struct{ Target Target }

// DestroyResult is the result of [Extension.Destroy].
type DestroyResult struct {
	Existed   bool     // whether anything was there to remove
	Removed   []string // what was removed, as "kind name"
	Leftovers []string // what is still there, as "kind name: reason"
}

// ExecOptions are the options of [Execer.Exec].
type ExecOptions struct {
	Target  Target
	Command []string
	Env     map[string]string
	User    string // name, uid or uid:gid; empty is the profile's
	Workdir string // absolute; empty is the profile's
	Timeout time.Duration
	Stdin   io.Reader // nil is empty
	Stdout  io.Writer // nil discards
	Stderr  io.Writer // nil discards
}

// ExecResult is the result of [Execer.Exec].
type ExecResult struct {
	ExitCode int  // 128+n when signal n ended the command
	TimedOut bool // the timeout ended it; ExitCode is then meaningless
}

// CopyInOptions are the options of [Copier.CopyIn].
type CopyInOptions struct {
	Target  Target
	Path    string    // absolute directory in the sandbox, made when missing
	Archive io.Reader // tar, names relative to Path
}

// CopyInResult is the result of [Copier.CopyIn].
type CopyInResult struct{ Bytes int64 }

// CopyOutOptions are the options of [Copier.CopyOut].
type CopyOutOptions struct {
	Target  Target
	Path    string    // absolute file or directory in the sandbox
	Archive io.Writer // receives a tar whose names begin with the base name of Path
}

// CopyOutResult is the result of [Copier.CopyOut].
type CopyOutResult struct{ Bytes int64 }

// LogsOptions are the options of [Logger.Logs].
type LogsOptions struct {
	Target Target
	// Source says which log; one that is not kept is [ErrUnsupported].
	Source LogSource
	Follow bool
	Tail   int       // last lines only; 0 is all that is kept
	Output io.Writer // as written
}

// LogSource is one of the logs of a sandbox.
type LogSource string

// The logs. Every [Logger] has the first one; [FeatureNetworkLog] says
// whether it has the other.
const (
	LogMain    LogSource = ""        // stdout and stderr of the main process
	LogNetwork LogSource = "network" // connections and names that the network policy refused, a line each
)

// LogsResult is the result of [Logger.Logs].
type LogsResult struct{ Bytes int64 }

// PauseOptions are the options of [Pauser.Pause].
type PauseOptions struct{ Target Target }

// PauseResult is the result of [Pauser.Pause].
type PauseResult struct{ Sandbox Sandbox }

// ResumeOptions are the options of [Pauser.Resume].
type ResumeOptions struct{ Target Target }

// ResumeResult is the result of [Pauser.Resume].
type ResumeResult struct{ Sandbox Sandbox }

// PrepareOptions are the options of [Preparer.Prepare].
type PrepareOptions struct {
	Profile  Profile
	Progress func(Progress)
}

// PrepareResult is the result of [Preparer.Prepare].
type PrepareResult struct {
	ImageDigest string // what the profile's source resolved to; empty when it has none
}

// SnapshotOptions are the options of [Snapshotter.Snapshot].
type SnapshotOptions struct {
	Target     Target
	SnapshotID string // made by the caller
	Kind       SnapshotKind
	ExpiresAt  time.Time // retention
	Identity   Identity  // of the snapshot; its ID is SnapshotID
	Event      EventRef
	Progress   func(Progress)
}

// SnapshotResult is the result of [Snapshotter.Snapshot].
type SnapshotResult struct{ Snapshot Snapshot }

// GetSnapshotOptions are the options of [Snapshotter.GetSnapshot].
type GetSnapshotOptions struct {
	SnapshotID string
	Fleet      string
}

// GetSnapshotResult is the result of [Snapshotter.GetSnapshot].
type GetSnapshotResult struct{ Snapshot Snapshot }

// ListSnapshotsOptions are the options of [Snapshotter.ListSnapshots].
type ListSnapshotsOptions struct {
	Fleet string
}

// ListSnapshotsResult is the result of [Snapshotter.ListSnapshots].
type ListSnapshotsResult struct {
	Snapshots  []Snapshot
	Incomplete string // as in [ListResult]
}

// ExtendSnapshotOptions are the options of [Snapshotter.ExtendSnapshot].
type ExtendSnapshotOptions struct {
	SnapshotID string
	Fleet      string
	ExpiresAt  time.Time
}

// ExtendSnapshotResult is the result of [Snapshotter.ExtendSnapshot].
type ExtendSnapshotResult struct{ Snapshot Snapshot }

// DeleteSnapshotOptions are the options of [Snapshotter.DeleteSnapshot].
type DeleteSnapshotOptions struct {
	SnapshotID string
	Fleet      string
}

// DeleteSnapshotResult is the result of [Snapshotter.DeleteSnapshot].
type DeleteSnapshotResult struct{ Existed bool }

// RestoreOptions are the options of [Snapshotter.Restore].
type RestoreOptions struct {
	SnapshotID string
	// Create is the new sandbox. Its Profile is the one that the snapshot
	// was made from; ID, identity, lease, environment and secrets are new.
	Create CreateOptions
}
