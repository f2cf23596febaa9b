// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockertest_test

import (
	"os"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/dockertest"
)

func TestMain(m *testing.M) { os.Exit(dockertest.Main(m)) }

// The engine runs a container from an image that was made here, on a network
// of its own.
func TestDockerEngine(t *testing.T) {
	e := dockertest.Start(t)
	e.Images(t)
	made, err := e.Client.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config:     &container.Config{Image: dockertest.Busybox, Cmd: []string{"true"}},
		HostConfig: &container.HostConfig{NetworkMode: "bridge"},
	})
	if err != nil {
		t.Fatal(err)
	}
	wait := e.Client.ContainerWait(t.Context(), made.ID, client.ContainerWaitOptions{Condition: container.WaitConditionRemoved})
	next := e.Client.ContainerWait(t.Context(), made.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := e.Client.ContainerStart(t.Context(), made.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case end := <-next.Result:
		if end.StatusCode != 0 {
			t.Errorf("the container ended with %d", end.StatusCode)
		}
	case err := <-next.Error:
		t.Fatal(err)
	}
	if _, err := e.Client.ContainerRemove(t.Context(), made.ID, client.ContainerRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-wait.Result:
	case err := <-wait.Error:
		t.Fatal(err)
	}
}
