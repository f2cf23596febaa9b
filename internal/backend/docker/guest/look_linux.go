// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/isolation"
)

// lookTime bounds a look. What takes time in it are connections that nobody
// answers, all at the same time.
const lookTime = 30 * time.Second

// look reports what can be seen from here.
func look(args []string) error {
	expect, err := isolation.ParseExpect(args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	return isolation.WriteReport(os.Stdout, isolation.Look(ctx, expect))
}
