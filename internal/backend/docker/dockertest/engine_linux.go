// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package dockertest gives tests a Docker Engine of their own: private in its
// directories, its network and its processes, started when the first test
// asks for it, shared by all tests of a package, and gone with them. It uses
// the machine's dockerd, and pulls nothing: its images are made here.
package dockertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// Engine is a running Docker Engine.
type Engine struct {
	Host   string         // as in DOCKER_HOST
	TLS    string         // likewise, over TCP, for clients with a certificate
	Certs  string         // directory with certificates in directories; see makeCertificates
	Dir    string         // for the files of the run; removed with it
	Client *client.Client // for tests to look with, and to do what a stranger would

	args []string
	cmd  *exec.Cmd
}

const startDeadline = 60 * time.Second

var shared struct {
	once   sync.Once
	engine *Engine
	err    error
}

// Start returns the engine of the test run. A machine without one fails the
// test: a test that can't run is a gap.
func Start(t testing.TB) *Engine {
	t.Helper()
	shared.once.Do(func() { shared.engine, shared.err = start() })
	if shared.err != nil {
		t.Fatalf("start a Docker Engine (`go run ./tools/testrun docker` installs what it needs): %v", shared.err)
	}
	return shared.engine
}

func start() (*Engine, error) {
	work := os.Getenv(workDir)
	if work == "" {
		return nil, errors.New("the package's TestMain does not call dockertest.Main")
	}
	program, err := find("dockerd")
	if err != nil {
		return nil, err
	}
	config := filepath.Join(work, "daemon.json")
	runtimes, err := makeRuntimes(work)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, runtimes, 0o600); err != nil {
		return nil, err
	}
	// The network namespace is the run's own: the port is free.
	e := &Engine{Host: "unix://" + filepath.Join(work, "docker.sock"), TLS: "tcp://127.0.0.1:2376", Certs: filepath.Join(work, "certs"), Dir: work}
	if err := makeCertificates(e.Certs); err != nil {
		return nil, err
	}
	server := filepath.Join(e.Certs, "server")
	e.args = []string{
		program, "--config-file", config, "--host", e.Host, "--pidfile", filepath.Join(work, "docker.pid"),
		"--data-root", filepath.Join(work, "data"), "--exec-root", filepath.Join(work, "exec"),
		"--host", e.TLS, "--tlsverify", "--tlscacert", filepath.Join(server, "ca.pem"), "--tlscert", filepath.Join(server, "cert.pem"), "--tlskey", filepath.Join(server, "key.pem"),
	}
	if e.Client, err = client.New(client.WithHost(e.Host)); err != nil {
		return nil, err
	}
	if err := e.run(); err != nil {
		return nil, err
	}
	return e, nil
}

// run starts the daemon and waits until it answers.
func (e *Engine) run() error {
	log, err := os.OpenFile(filepath.Join(e.Dir, "dockerd.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd = exec.CommandContext(context.Background(), e.args[0], e.args[1:]...)
	e.cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := e.cmd.Start(); err != nil {
		return err
	}
	if err := e.await(); err != nil {
		e.end()
		said, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w; it said:\n%s", err, tail(string(said), 20))
	}
	return nil
}

// Kill kills the daemon. What it runs is not killed.
func (e *Engine) Kill(t testing.TB) {
	t.Helper()
	if err := e.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = e.cmd.Wait()
}

// Restart starts a killed daemon again and waits until it answers.
func (e *Engine) Restart(t testing.TB) {
	t.Helper()
	// A killed daemon leaves these, its containerd dies with it, and nobody in
	// this namespace collects the dead: a new daemon would take them for alive.
	for _, name := range []string{"docker.pid", "exec/containerd/containerd.pid"} {
		if err := os.Remove(filepath.Join(e.Dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if err := e.run(); err != nil {
		t.Fatal(err)
	}
}

// Freeze stops the daemon, so that it keeps its connections and answers
// nothing, until Thaw.
func (e *Engine) Freeze(t testing.TB) { e.signal(t, syscall.SIGSTOP) }

// Thaw continues what Freeze stopped.
func (e *Engine) Thaw(t testing.TB) { e.signal(t, syscall.SIGCONT) }

func (e *Engine) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := e.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func (e *Engine) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	for {
		_, err := e.Client.Ping(ctx, client.PingOptions{})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("dockerd did not answer within %s: %w", startDeadline, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// leftovers names what is labelled as sandboxer's on the engine of the run. The
// fleet's reaper goes by itself a little later.
func leftovers() (left []string) {
	if shared.engine == nil {
		return nil
	}
	for range 100 {
		if left = shared.engine.labelled(); len(left) == 0 {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	return left
}

// ownLabel is on everything that sandboxer makes on an engine, but the image of
// the reaper's program, which stays for the next reaper.
const ownLabel = "dev.sandboxer/fleet"

func (e *Engine) labelled() (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), startDeadline)
	defer cancel()
	own := make(client.Filters).Add("label", ownLabel)
	containers, err := e.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: own})
	for _, c := range containers.Items {
		names = append(names, "container "+strings.Join(c.Names, " "))
	}
	networks, networkErr := e.Client.NetworkList(ctx, client.NetworkListOptions{Filters: own})
	for _, n := range networks.Items {
		names = append(names, "network "+n.Name)
	}
	volumes, volumeErr := e.Client.VolumeList(ctx, client.VolumeListOptions{Filters: own})
	for _, v := range volumes.Items {
		names = append(names, "volume "+v.Name)
	}
	images, imageErr := e.Client.ImageList(ctx, client.ImageListOptions{All: true, Filters: own})
	for _, i := range images.Items {
		names = append(names, "image "+strings.Join(i.RepoTags, " ")+" "+i.ID)
	}
	if err := errors.Join(err, networkErr, volumeErr, imageErr); err != nil {
		names = append(names, err.Error())
	}
	return names
}

// stop ends the engine. What it leaves undone ends with the namespaces.
func stop() {
	if shared.engine != nil {
		shared.engine.end()
	}
}

func (e *Engine) end() {
	_ = e.Client.Close()
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	killer := time.AfterFunc(15*time.Second, func() { _ = e.cmd.Process.Kill() })
	defer killer.Stop()
	_ = e.cmd.Wait()
}

// find looks for a program where root's PATH would have it.
func find(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path := filepath.Join(dir, name); exec.CommandContext(context.Background(), path, "--version").Run() == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no %s on this machine (Debian: docker.io)", name)
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
