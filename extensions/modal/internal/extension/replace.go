// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// A life that goes on beyond the vendor's: where the configuration says so, a
// sandbox is snapshotted and ended, and another one made from that in its place.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// rescueTTL is how long the image is kept that a sandbox goes on from, should
// that fail.
const rescueTTL = 24 * time.Hour

// replace makes a sandbox anew with a lease that the vendor's lifetime of the
// present one is too short for. Until the new one is there, the snapshot that it
// is made from is one of the fleet's, so that whatever fails, nothing is lost.
func (e *Extension) replace(ctx context.Context, f found, lease sdk.Lease) error {
	fleet, id := f.object.Identity.Fleet, f.sandbox.ID
	env, err := e.variables(ctx, f)
	if err != nil {
		return fmt.Errorf("replace sandbox %s: %w", id, err)
	}
	app, err := e.client.app(ctx, appName(fleet), true)
	if err != nil {
		return err
	}
	now := e.now().UTC()
	rescue := record{Version: recordVersion, Snapshot: sdk.Snapshot{
		ID: sdk.ExpirySnapshotID(id), SandboxID: id, Kind: sdk.SnapshotFilesystem, Identity: f.object.Identity.Clone(), CreatedAt: now,
		ExpiresAt: now.Add(rescueTTL), ContainsSecrets: f.object.Secrets, Profile: f.object.Profile, Lost: []string{lost},
	}}
	rescue.Snapshot.Identity.ID = rescue.Snapshot.ID
	if rescue.Snapshot.Ref, err = e.capture(ctx, f.vendor.ref, rescue.Snapshot.ExpiresAt, f.object.EndsAt); err != nil {
		return err
	}
	if err := e.records.put(rescue); err != nil {
		return errors.Join(err, e.client.deleteImage(context.WithoutCancel(ctx), rescue.Snapshot.Ref))
	}
	// From here it is seen through, also when the caller gives up: half of it
	// would be no sandbox at all.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*createDeadline)
	defer cancel()
	failed := func(err error) error {
		return &sdk.Error{
			Kind: sdk.ErrUnreachable, Err: err, Lease: &f.lease,
			Message: fmt.Sprintf("sandbox %s could not be replaced", id), Advice: fmt.Sprintf("its files are in the snapshot %s for %s", rescue.Snapshot.ID, rescueTTL),
		}
	}
	image, err := e.client.imageThere(ctx, rescue.Snapshot.Ref)
	if err != nil {
		return failed(err)
	}
	// The name is free only when the present one has ended.
	if gone, err := e.remove(ctx, f.vendor.ref); !gone {
		return failed(errors.Join(err, errors.New("the present one did not end")))
	}
	e.forget(f.vendor.ref)
	opts := sdk.CreateOptions{
		ID: id, Identity: f.object.Identity.Clone(), Profile: f.object.Profile, ExpiresAt: lease.ExpiresAt, MaxExpiresAt: lease.MaxExpiresAt,
		OnExpiry: f.object.OnExpiry, IdleTimeout: f.object.IdleTimeout, PausedTTL: f.object.PausedTTL, Env: env, Event: lease.Event,
	}
	opts.Identity.Incarnation = f.sandbox.Incarnation + 1
	if _, err := e.create(ctx, opts, app, image, origin{snapshot: true, keeps: f.object.Secrets, generation: lease.Generation}); err != nil {
		return failed(err)
	}
	if _, err := e.DeleteSnapshot(ctx, sdk.DeleteSnapshotOptions{SnapshotID: rescue.Snapshot.ID, Fleet: fleet}); err != nil && !errors.Is(err, sdk.ErrUnreachable) {
		return err // one that stays ends at its retention
	}
	return nil
}

// variables are the environment of a sandbox, which the vendor does not tell: as
// a command in it has it.
func (e *Extension) variables(ctx context.Context, f found) (map[string]string, error) {
	const most = 1 << 20
	var said bytes.Buffer
	result, err := e.run(ctx, f, command{args: []string{"/bin/sh", "-c", fmt.Sprintf("exec head -c %d /proc/self/environ", most)}, workdir: "/", stdout: &said})
	if err == nil && result.ExitCode != 0 {
		err = fmt.Errorf("exit code %d", result.ExitCode)
	}
	if err == nil && said.Len() == most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	if err != nil {
		return nil, fmt.Errorf("read its environment: %w", err)
	}
	env := map[string]string{}
	for pair := range strings.SplitSeq(said.String(), "\x00") {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok || !isVariable(name) || strings.HasPrefix(name, "MODAL_"):
		case name == markVariable || name == "PWD" || name == "OLDPWD" || name == "SHLVL" || name == "_" || name == "HOSTNAME":
			// The command's own, and the machine's.
		default:
			env[name] = value
		}
	}
	return env, nil
}
