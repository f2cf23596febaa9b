// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Exclusive runs act while nothing else that is run so on this ledger does, in
// whatever process: for decisions that look at several logs before they append
// to one. Plain appends are not held up. A holder that dies lets go.
func (l *Ledger) Exclusive(ctx context.Context, act func() error) error {
	if err := makeDirs(l.dir); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockPatience, ErrBusy)
	defer cancel()
	// Goroutines of this process queue here: each opens the file anew, so the
	// file's lock would hold between them as well, but not in their order. The
	// gate is not the one of the logs: act may wait at each of its slots.
	leave, err := l.exclusive.enter(ctx, exclusiveName)
	if err != nil {
		return err
	}
	defer leave()
	lock, err := os.OpenFile(filepath.Join(l.dir, exclusiveName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := lockFile(ctx, lock); err != nil {
		return errors.Join(fmt.Errorf("lock %s: %w", lock.Name(), err), lock.Close())
	}
	return errors.Join(act(), lock.Close())
}

// exclusiveName is the file whose lock [Ledger.Exclusive] holds.
const exclusiveName = "exclusive"
