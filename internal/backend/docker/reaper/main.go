// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command reaper ends the sandboxes of one fleet on a Docker Engine at their
// deadline. It runs in a container on that engine, with the engine's socket
// mounted, and removes its own container when the fleet has nothing left.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxer reaper:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	fleet := os.Getenv(docker.FleetVariable)
	if fleet == "" {
		return fmt.Errorf("%s names no fleet: this program is for sandboxer's own use", docker.FleetVariable)
	}
	config, err := json.Marshal(map[string]string{"host": "unix://" + docker.ReaperSocket, "reaper": "external"})
	if err != nil {
		return err
	}
	e := docker.New(docker.Options{})
	if _, err := e.Configure(ctx, sdk.ConfigureOptions{Backend: "reaper", Fleet: fleet, Config: config}); err != nil {
		return err
	}
	err = e.Reap(ctx, func(err error) { fmt.Fprintln(os.Stderr, "sandboxer reaper:", err) })
	switch {
	case errors.Is(err, context.Canceled):
		return nil // told to stop
	case err != nil:
		return err
	}
	return e.RemoveReaper(ctx)
}
