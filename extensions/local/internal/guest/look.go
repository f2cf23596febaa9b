// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package guest

import (
	"context"
	"io"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/isolation"
)

// Look is the helper that looks for credentials. It runs as the main process's
// user and with its environment, where the others are root: what it finds is
// what a command would find.
const Look = "look"

// lookTime bounds a look. What takes time in it are connections that nobody
// answers, all at the same time.
const lookTime = 30 * time.Second

func look(to io.Writer, args []string) error {
	expect, err := isolation.ParseExpect(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	return isolation.WriteReport(to, isolation.Look(ctx, expect))
}
