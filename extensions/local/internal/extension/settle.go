// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// What a sandbox leaves that died without anyone there: a kill of its
// supervisor, a restart of the machine. Its record stays, and says why it
// ended; all else goes.

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/cgroup"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/supervisor"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// settleTime bounds the settling of one sandbox. Its processes are dead, or
// are killed, so nothing takes long.
const settleTime = 2 * time.Second

// settle removes what a dead sandbox left. It is best effort: what can't be
// done now is tried again by the next listing or create.
func (e *Extension) settle(ctx context.Context, r record.Record, dir string) {
	// Its socket goes last, so it tells what is left to do; one that died
	// before it had one has at most groups.
	socket := filepath.Join(dir, supervisor.SocketName)
	_, err := os.Lstat(socket)
	var groups []string
	if len(r.Cgroups) > 0 {
		groups = cgroup.Find().Of(r.ID, r.Cgroups)
	}
	if errors.Is(err, os.ErrNotExist) && len(groups) == 0 {
		return
	}
	if record.SupervisorAlive(dir) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := e.writeEnd(r, dir); err != nil {
		return // its groups still say why it ended
	}
	if supervisor.KillStrays(ctx, dir, r.ID) != nil {
		return
	}
	for _, group := range groups {
		if cgroup.Remove(ctx, group) != nil {
			return
		}
	}
	_ = os.Remove(socket)
}

// writeEnd makes durable what can be derived only while the remains are there.
func (e *Extension) writeEnd(r record.Record, dir string) error {
	status, reason := e.status(r, dir)
	if status != sdk.StatusLost || r.Status == sdk.StatusLost && r.Exceeded == exceeded(r) {
		return nil
	}
	_, err := record.Update(dir, r.ID, func(now *record.Record) error {
		if now.Status == r.Status && !record.SupervisorAlive(dir) {
			now.Status, now.Reason, now.Exceeded = status, reason, exceeded(r)
		}
		return nil
	})
	return err
}
