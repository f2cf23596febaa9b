// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// Ports of a sandbox that has no way out. Its own network is internal and the
// host has no address on it, so nothing answers there but a second container
// of ours, which is on the engine's default network as well and carries
// connections in. It runs nothing of the sandbox's and listens on published
// ports only.

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
)

// networkTries bounds how often another subnet is drawn.
const networkTries = 20

// makeNetwork makes a sandbox's own network. The engine's own pools hold some
// thirty networks, so the subnet is drawn here: eight addresses of those that
// are nobody's (RFC 6598), of which the host gets none.
func (e *Extension) makeNetwork(ctx context.Context, eng engine, c creation) (err error) {
	for range networkTries {
		subnet := drawSubnet()
		_, err = eng.NetworkCreate(ctx, networkName(c.identity.ID), client.NetworkCreateOptions{
			Driver: "bridge", Internal: true, Labels: c.labels(roleNetwork),
			IPAM:    &network.IPAM{Config: []network.IPAMConfig{{Subnet: subnet}}},
			Options: map[string]string{"com.docker.network.bridge.inhibit_ipv4": "true"},
		})
		if err == nil || !strings.Contains(err.Error(), "overlap") {
			break
		}
	}
	return e.translate(err, "make the network of "+c.identity.ID)
}

func drawSubnet() netip.Prefix {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	const base, bits = 0x64400000, 29
	var address [4]byte
	binary.BigEndian.PutUint32(address[:], base|binary.BigEndian.Uint32(random[:])&0x003ffff8)
	return netip.PrefixFrom(netip.AddrFrom4(address), bits)
}

// carryPorts starts the container that carries connections in.
func (e *Extension) carryPorts(ctx context.Context, eng engine, id string, c creation) error {
	inspected, err := eng.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return e.translate(err, "look at "+c.identity.ID)
	}
	own := inspected.Container.NetworkSettings.Networks[networkName(c.identity.ID)]
	if own == nil || !own.IPAddress.IsValid() {
		return fmt.Errorf("sandbox %s has no address on its network: it may have ended at once", c.identity.ID)
	}
	ref, err := e.programImage(ctx, eng, "guest", c.guest)
	if err != nil {
		return err
	}
	command := []string{guestwire.VerbForward}
	for _, port := range slices.Compact(slices.Sorted(maps.Values(c.opts.Profile.Ports))) {
		command = append(command, fmt.Sprintf("%d=%s", port, netip.AddrPortFrom(own.IPAddress, uint16(port))))
	}
	set, bindings := published(c.opts.Profile)
	made, err := eng.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: portsName(c.identity.ID),
		Config: &container.Config{
			Image: ref, Entrypoint: []string{programPath}, Cmd: command, Labels: c.labels(rolePorts), ExposedPorts: set, User: "65534:65534",
		},
		HostConfig: hardened(&container.HostConfig{
			NetworkMode: "bridge", PortBindings: bindings, Sysctls: map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
		}, 64<<20),
	})
	if err == nil {
		_, err = eng.NetworkConnect(ctx, networkName(c.identity.ID), client.NetworkConnectOptions{Container: made.ID})
	}
	if err == nil {
		_, err = eng.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
	}
	return e.translate(err, "publish the ports of "+c.identity.ID)
}

// hardened is what every container of our own programs has: nothing to write
// to, no capability, and little memory.
func hardened(host *container.HostConfig, memory int64) *container.HostConfig {
	host.ReadonlyRootfs, host.CapDrop, host.SecurityOpt = true, []string{"ALL"}, []string{"no-new-privileges"}
	host.Memory, host.MemorySwap, host.IpcMode = memory, memory, "private"
	host.LogConfig = container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": strconv.Itoa(1 << 20), "max-file": "1"}}
	return host
}
