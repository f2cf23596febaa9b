// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/portable"
)

// givenVariables are those of each sandbox's create. One instance creates, and
// another exports.
var givenVariables sync.Map

// emptyArchive is a whole archive with nothing in it.
func emptyArchive() []byte {
	var out bytes.Buffer
	w, err := portable.NewWriter("")
	if err == nil {
		err = w.Layer(func(to io.Writer) error { _, err := to.Write(make([]byte, 1024)); return err })
	}
	if err == nil {
		_, _, err = w.Write(&out, portable.Config{Architecture: "any"}, portable.Document{
			SnapshotID: "snp-" + strings.Repeat("0", 20), SandboxID: "sbx-" + strings.Repeat("0", 20), Profile: sdk.Profile{Name: "empty"},
		})
	}
	if err := errors.Join(err, w.Close()); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// variant is an extension and what the kit has to say of it.
type variant struct {
	name   string
	breaks func(b *broken)
	wrap   func(b broken) sdk.Extension // when breaks is not enough
	fails  []string                     // in the order of the report
	errors bool                         // in other rules, that need what is missing
	leaves bool                         // something behind
}

var variants = []variant{
	{name: "none", breaks: func(*broken) {}},
	{
		name: "ignores the generation of an extend", fails: []string{"extend/compare_and_swap", "claim/race"},
		breaks: func(b *broken) {
			b.extend = func(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
				for {
					granted, err := b.careful.Extend(ctx, opts)
					var said *sdk.Error
					if !errors.Is(err, sdk.ErrConflict) || !errors.As(err, &said) || said.Lease == nil {
						return granted, err
					}
					opts.Generation = said.Lease.Generation
				}
			}
		},
	},
	{
		name: "forgets labels", fails: []string{"create/identity"},
		breaks: func(b *broken) {
			b.create = func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
				opts.Identity.Labels = nil
				return b.careful.Create(ctx, opts)
			}
		},
	},
	{
		name: "lists other fleets", fails: []string{"list/other_fleet"},
		breaks: func(b *broken) {
			b.list = func(ctx context.Context, opts sdk.ListOptions) (sdk.ListResult, error) {
				own, err := b.careful.List(ctx, opts)
				if err != nil {
					return own, err
				}
				others, err := b.careful.List(ctx, sdk.ListOptions{Fleet: otherFleet(opts.Fleet)})
				own.Sandboxes = append(own.Sandboxes, others.Sandboxes...)
				return own, err
			}
		},
	},
	{
		name: "destroys in other fleets", fails: []string{"foreign/destroy"},
		breaks: func(b *broken) {
			b.destroy = func(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
				gone, err := b.careful.Destroy(ctx, opts)
				if err == nil && !gone.Existed {
					opts.Target.Fleet = otherFleet(opts.Target.Fleet)
					_, err = b.careful.Destroy(ctx, opts)
				}
				return gone, err
			}
		},
	},
	{
		name: "says of a paused sandbox that it is destroyed, and keeps it", fails: []string{"destroy/paused"}, leaves: true,
		breaks: func(b *broken) {
			b.destroy = func(ctx context.Context, opts sdk.DestroyOptions) (sdk.DestroyResult, error) {
				got, err := b.careful.Get(ctx, sdk.GetOptions(opts))
				if err == nil && got.Sandbox.Status == sdk.StatusPaused {
					return sdk.DestroyResult{Existed: true, Removed: []string{"box"}}, nil
				}
				return b.careful.Destroy(ctx, opts)
			}
		},
	},
	{
		name: "claims ports and has none", fails: []string{"ports/endpoint"},
		breaks: func(b *broken) {
			b.claims = sdk.Capabilities{sdk.FeaturePorts: {Class: sdk.ClassEnforced, Reason: "so it says"}}
			b.create = func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
				opts.Profile.Ports = nil // the stub refuses them
				return b.careful.Create(ctx, opts)
			}
		},
	},
	{
		name: "claims exec and does not implement it", fails: []string{"abilities/exec"}, errors: true,
		wrap: func(b broken) sdk.Extension { return execless{b, b, b, b, b, b} },
	},
	{
		name: "claims to be inspected and does not implement it", fails: []string{"abilities/inspect"},
		wrap: func(b broken) sdk.Extension { return inspectless{b, b, b, b, b, b} },
	},
	{
		name: "claims portable snapshots and does not implement them", fails: []string{"abilities/portable"}, errors: true,
		wrap: func(b broken) sdk.Extension { return portableless{b, b, b, b, b, b, b} },
	},
	{
		name: "exports the variables of the create", fails: []string{"portable/secrets"},
		breaks: func(b *broken) {
			b.create = func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
				givenVariables.Store(opts.ID, maps.Clone(opts.Env))
				return b.careful.Create(ctx, opts)
			}
			b.export = func(ctx context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error) {
				return b.rewritten(ctx, opts, func(a *portable.Archive) {
					env, _ := givenVariables.Load(a.Document.SandboxID)
					variables, _ := env.(map[string]string)
					for name, value := range variables {
						a.Config.Env = append(a.Config.Env, name+"="+value)
					}
				})
			}
		},
	},
	{
		name: "keeps its losses to itself", fails: []string{"portable/round_trip", "portable/secrets"},
		breaks: func(b *broken) {
			b.export = func(ctx context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error) {
				return b.rewritten(ctx, opts, func(a *portable.Archive) { a.Document.Losses = nil })
			}
		},
	},
	{
		name: "tells of its losses, and not in the archive", fails: []string{"portable/round_trip"},
		breaks: func(b *broken) {
			b.export = func(ctx context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error) {
				var losses []sdk.Loss
				result, err := b.rewritten(ctx, opts, func(a *portable.Archive) { losses, a.Document.Losses = a.Document.Losses, nil })
				result.Losses = losses
				return result, err
			}
		},
	},
	{
		name: "exports the snapshots of other fleets", fails: []string{"portable/unknown"},
		breaks: func(b *broken) {
			b.export = func(ctx context.Context, opts sdk.ExportSnapshotOptions) (sdk.ExportSnapshotResult, error) {
				result, err := b.careful.ExportSnapshot(ctx, opts)
				if errors.Is(err, sdk.ErrNotFound) {
					opts.Fleet = otherFleet(opts.Fleet)
					return b.careful.ExportSnapshot(ctx, opts)
				}
				return result, err
			}
		},
	},
	{
		name: "keeps a snapshot of an archive that it refuses", fails: []string{"portable/damaged"},
		breaks: func(b *broken) {
			b.take = func(ctx context.Context, opts sdk.ImportSnapshotOptions) (sdk.ImportSnapshotResult, error) {
				content, err := io.ReadAll(opts.Archive)
				if err != nil {
					return sdk.ImportSnapshotResult{}, err
				}
				opts.Archive = bytes.NewReader(content)
				result, err := b.careful.ImportSnapshot(ctx, opts)
				if errors.Is(err, sdk.ErrInvalid) {
					opts.Archive = bytes.NewReader(emptyArchive())
					_, _ = b.careful.ImportSnapshot(ctx, opts)
				}
				return result, err
			}
		},
	},
	{
		name: "implements exec and calls it unsupported", fails: []string{"abilities/exec"},
		breaks: func(b *broken) {
			b.claims = sdk.Capabilities{sdk.FeatureExec: {Class: sdk.ClassUnsupported, Reason: "so it says"}}
		},
	},
	{
		name: "has a document without reasons", fails: []string{"describe/complete"},
		breaks: func(b *broken) {
			b.claims = sdk.Capabilities{sdk.FeatureLogs: {Class: sdk.ClassEnforced}}
		},
	},
	{
		name: "extends past the deadline", fails: []string{"extend/after_deadline"},
		breaks: func(b *broken) {
			b.extend = func(ctx context.Context, opts sdk.ExtendOptions) (sdk.ExtendResult, error) {
				granted, err := b.careful.Extend(ctx, opts)
				if errors.Is(err, sdk.ErrExpired) && !granted.Lease.Claimed {
					granted.Lease.ExpiresAt, err = opts.ExpiresAt, nil
				}
				return granted, err
			}
		},
	},
	{
		name: "lengthens by an expire", fails: []string{"expire/never_lengthens"},
		breaks: func(b *broken) {
			b.expire = func(ctx context.Context, opts sdk.ExpireOptions) (sdk.ExpireResult, error) {
				got, err := b.careful.Get(ctx, sdk.GetOptions{Target: opts.Target})
				if err == nil && opts.ExpiresAt.After(got.Sandbox.Lease.ExpiresAt) {
					granted, err := b.careful.Extend(ctx, sdk.ExtendOptions(opts))
					return sdk.ExpireResult(granted), err
				}
				return b.careful.Expire(ctx, opts)
			}
		},
	},
	{
		name: "lets a reaper claim what lives", fails: []string{"claim/only_expired"},
		breaks: func(b *broken) {
			b.claim = func(ctx context.Context, opts sdk.ClaimOptions) (sdk.ClaimResult, error) {
				opts.OnlyExpired = false
				return b.careful.Claim(ctx, opts)
			}
		},
	},
	{
		name: "takes a second create for the first", fails: []string{"create/idempotent", "create/one_winner", "faults/lost_create"},
		breaks: func(b *broken) {
			b.create = func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
				made, err := b.careful.Create(ctx, opts)
				if errors.Is(err, sdk.ErrConflict) {
					got, err := b.careful.Get(ctx, sdk.GetOptions{Target: sdk.Target{ID: opts.ID, Fleet: opts.Identity.Fleet}})
					return sdk.CreateResult(got), err
				}
				return made, err
			}
		},
	},
	{
		name: "loses the exit code", fails: []string{"exec/exit_code"},
		breaks: func(b *broken) {
			b.exec = func(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
				result, err := b.careful.Exec(ctx, opts)
				result.ExitCode = 0
				return result, err
			}
		},
	},
	{
		name: "does not say that a command timed out", fails: []string{"exec/timeout"},
		breaks: func(b *broken) {
			b.exec = func(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
				result, err := b.careful.Exec(ctx, opts)
				result.TimedOut = false
				return result, err
			}
		},
	},
	{
		name: "mixes the streams", fails: []string{"exec/streams"},
		breaks: func(b *broken) {
			b.exec = func(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
				opts.Stderr = opts.Stdout
				return b.careful.Exec(ctx, opts)
			}
		},
	},
	{
		name: "cuts output short", fails: []string{"exec/large_output", "exec/stdin"},
		breaks: func(b *broken) {
			b.exec = func(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
				if opts.Stdout != nil {
					opts.Stdout = &cut{w: opts.Stdout, left: 64 << 10}
				}
				return b.careful.Exec(ctx, opts)
			}
		},
	},
	{
		name: "puts secrets into the environment", fails: []string{"secrets/hidden"},
		breaks: func(b *broken) {
			b.create = func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
				opts.Env = maps.Clone(opts.Env)
				for name, value := range opts.Secrets {
					if opts.Env == nil {
						opts.Env = map[string]string{}
					}
					opts.Env[name] = string(value)
				}
				return b.careful.Create(ctx, opts)
			}
		},
	},
	{
		name: "says of what it can't reach that it is gone", fails: []string{"faults/unreachable"},
		breaks: func(b *broken) {
			b.get = func(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
				got, err := b.careful.Get(ctx, opts)
				if errors.Is(err, sdk.ErrUnreachable) {
					err = sdk.Errorf(sdk.ErrNotFound, "no box")
				}
				return got, err
			}
		},
	},
	{
		name: "only pretends to pause", fails: []string{"pause/resume", "pause/exec", "pause/extend"},
		breaks: func(b *broken) {
			b.pause = func(ctx context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
				got, err := b.careful.Get(ctx, sdk.GetOptions(opts))
				got.Sandbox.Status = sdk.StatusPaused
				return sdk.PauseResult(got), err
			}
		},
	},
	{
		name: "gives the whole log for its tail", fails: []string{"logs/main"},
		breaks: func(b *broken) {
			b.logs = func(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
				opts.Tail = 0
				return b.careful.Logs(ctx, opts)
			}
		},
	},
	{
		name: "gives the main log for every other", fails: []string{"logs/source"},
		breaks: func(b *broken) {
			b.logs = func(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
				opts.Source = sdk.LogMain
				return b.careful.Logs(ctx, opts)
			}
		},
	},
	{
		name: "deletes snapshots of other fleets", fails: []string{"snapshot/other_fleet"},
		breaks: func(b *broken) {
			b.deleteSnapshot = func(ctx context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
				gone, err := b.careful.DeleteSnapshot(ctx, opts)
				if err == nil && !gone.Existed {
					opts.Fleet = otherFleet(opts.Fleet)
					_, err = b.careful.DeleteSnapshot(ctx, opts)
				}
				return gone, err
			}
		},
	},
	{
		name: "restores an empty sandbox", fails: []string{"restore/content", "restore/fork"},
		breaks: func(b *broken) {
			b.restore = func(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
				made, err := b.careful.Restore(ctx, opts)
				if err == nil {
					target := sdk.Target{ID: opts.Create.ID, Ref: made.Sandbox.Ref, Fleet: opts.Create.Identity.Fleet}
					_, err = b.careful.Exec(ctx, sdk.ExecOptions{Target: target, Command: []string{"sh", "-c", "echo -n > /tmp/conformance-content"}})
				}
				return made, err
			}
		},
	},
	{
		name: "takes any key of the configuration", fails: []string{"configure/unknown_key"},
		breaks: func(b *broken) {
			b.configure = func(ctx context.Context, opts sdk.ConfigureOptions) (sdk.ConfigureResult, error) {
				var keys map[string]any
				if json.Unmarshal(opts.Config, &keys) == nil {
					opts.Config = nil
				}
				return b.careful.Configure(ctx, opts)
			}
		},
	},
	{
		name: "takes a look for a use", fails: []string{"idle/ends"},
		breaks: func(b *broken) {
			b.get = func(ctx context.Context, opts sdk.GetOptions) (sdk.GetResult, error) {
				got, err := b.careful.Get(ctx, opts)
				if err == nil && got.Sandbox.IdleTimeout > 0 && got.Sandbox.Status == sdk.StatusReady {
					// Long enough to last until the next look, on a busy machine too.
					go b.careful.Exec(ctx, sdk.ExecOptions{Target: opts.Target, Command: []string{"sleep", "3s"}})
				}
				return got, err
			}
		},
	},
	{
		name: "forgets the idle timeout", fails: []string{"idle/ends"},
		breaks: func(b *broken) {
			b.create = func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
				opts.IdleTimeout = 0
				return b.careful.Create(ctx, opts)
			}
		},
	},
	{
		name: "destroys where it should pause", fails: []string{"deadline/pause"},
		breaks: func(b *broken) {
			b.create = func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
				choice := opts.OnExpiry
				if choice == sdk.OnExpiryPause {
					opts.OnExpiry = sdk.OnExpiryDestroy
				}
				made, err := b.careful.Create(ctx, opts)
				made.Sandbox.OnExpiry = choice
				return made, err
			}
		},
	},
	{
		name: "leaves no snapshot at the end", fails: []string{"deadline/snapshot"},
		breaks: func(b *broken) {
			b.create = func(ctx context.Context, opts sdk.CreateOptions) (sdk.CreateResult, error) {
				choice := opts.OnExpiry
				if choice == sdk.OnExpirySnapshot {
					opts.OnExpiry = sdk.OnExpiryDestroy
				}
				made, err := b.careful.Create(ctx, opts)
				made.Sandbox.OnExpiry = choice
				return made, err
			}
		},
	},
}
