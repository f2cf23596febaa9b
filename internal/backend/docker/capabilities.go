// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// staticCapabilities is the document without a look at the engine. Classes
// that depend on it are the weakest that they can have; Probe decides them.
func staticCapabilities() sdk.Capabilities {
	enforced := func(reason string) sdk.Guarantee { return sdk.Guarantee{Class: sdk.ClassEnforced, Reason: reason} }
	bestEffort := func(reason string) sdk.Guarantee {
		return sdk.Guarantee{Class: sdk.ClassBestEffort, Reason: reason}
	}
	unsupported := func(reason string) sdk.Guarantee {
		return sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: reason}
	}
	machine := func(reason string) sdk.Guarantee {
		return sdk.Guarantee{Class: sdk.ClassUnsupported, Reason: reason, DependsOnMachine: true}
	}
	// varies is for what some engines that speak Docker's API do less well.
	varies := func(g sdk.Guarantee) sdk.Guarantee {
		g.DependsOnMachine = true
		return g
	}
	return sdk.Capabilities{
		sdk.FeatureKernelIsolation:       {Class: sdk.ClassBestEffort, Reason: "the engine's own kernel: namespaces, seccomp, few capabilities, no new privileges; a runtime like runsc or kata brings a kernel of its own", DependsOnMachine: true},
		sdk.FeatureCPULimit:              machine("control groups, where the engine may use them"),
		sdk.FeatureMemoryLimit:           machine("control groups, where the engine may use them; swap is none"),
		sdk.FeaturePidsLimit:             machine("control groups, where the engine may use them"),
		sdk.FeatureDiskLimit:             machine("the engine's storage driver, where it has quotas; volumes and tmpfs are beyond it"),
		sdk.FeatureEgressNone:            enforced("no interface but loopback; with ports, a network of its own on which the host has no address"),
		sdk.FeatureEgressDeny:            enforced("everything is denied, as with none; an allow-list is unsupported"),
		sdk.FeatureEgressCIDR:            unsupported("no allow-list yet"),
		sdk.FeatureEgressDomain:          unsupported("no allow-list yet"),
		sdk.FeatureEgressOpen:            bestEffort("the engine's default network: other containers on it and the engine's host can be reached"),
		sdk.FeatureSecretsOutside:        unsupported("secrets are files inside"),
		sdk.FeatureSecretFiles:           enforced("files of mode 0400 on a tmpfs, sent over the first process's input before the command starts; in no label, variable or inspection"),
		sdk.FeatureDeadline:              bestEffort("a reaper container per fleet on the engine, made again by every create and extend; with reaper = external whoever runs `sandboxer reap`"),
		sdk.FeatureExtend:                enforced("a log of generations in labelled volumes that are never mounted"),
		sdk.FeatureExtendCAS:             enforced("the engine creates a volume of a name once; the first writer's nonce is the winner's"),
		sdk.FeatureClaim:                 enforced("a generation of the same log"),
		sdk.FeatureExpirySnapshot:        unsupported("not at the deadline"),
		sdk.FeatureExpiryPause:           unsupported("not at the deadline"),
		sdk.FeatureIdleTimeout:           unsupported("no idle clock yet"),
		sdk.FeatureIdleExec:              unsupported("no idle clock yet"),
		sdk.FeatureIdleFiles:             unsupported("no idle clock yet"),
		sdk.FeatureIdlePorts:             unsupported("no idle clock yet"),
		sdk.FeatureIdleProcesses:         unsupported("no idle clock yet"),
		sdk.FeatureIdempotentCreate:      enforced("the first generation of the lease is taken before the container is made"),
		sdk.FeatureListComplete:          enforced("the engine lists every container and volume by label"),
		sdk.FeatureFilesystemSnapshot:    varies(enforced("an image on the engine, with the content of volumes; the sandbox is frozen meanwhile")),
		sdk.FeatureMemorySnapshot:        unsupported("the engine has no checkpoints that hold"),
		sdk.FeatureSnapshotLeavesRunning: varies(enforced("it goes on when the files are read")),
		sdk.FeatureRestore:               varies(enforced("into new ids, on the same engine")),
		sdk.FeatureFork:                  varies(enforced("as often as wanted")),
		sdk.FeaturePortableSnapshot:      varies(enforced("files and volumes as an OCI layout; what is not carried is named")),
		sdk.FeaturePause:                 enforced("the engine freezes all processes; the deadline goes on"),
		sdk.FeatureExec:                  varies(enforced("streams, exit code, user, directory, environment; a timeout ends the whole process tree")),
		sdk.FeatureFiles:                 varies(enforced("tar streams, packed and unpacked inside the sandbox")),
		sdk.FeaturePorts:                 varies(bestEffort("TCP, published by the engine; on loopback it is that of the engine's own machine")),
		sdk.FeatureLogs:                  bestEffort("as long as the engine's log driver keeps and gives them"),
		sdk.FeatureNetworkLog:            unsupported("without an allow-list there is nothing to tell about"),
		sdk.FeatureCredentialIsolation:   {Class: sdk.ClassUnverifiable, Reason: "earned by `sandboxer profile verify`, for each revision of a profile", DependsOnMachine: true},
		sdk.FeatureHostRoot:              unsupported("a container is made from an image"),
		sdk.FeatureImageFile:             enforced("an OCI layout, a docker save archive or a root filesystem tar, by path"),
		sdk.FeatureImagePull:             enforced("pulled by the engine when it is not there, with the credentials of Docker's command line"),
		sdk.FeatureImageBuild:            enforced("from a context on this machine, by the engine's own builder; the same context is built once"),
		sdk.FeatureCompose:               unsupported("a sandbox is one container"),
		sdk.FeatureMachine:               unsupported("a sandbox is no virtual machine"),
		sdk.FeatureTemplate:              unsupported("there are no templates"),
		sdk.FeatureRuntime:               machine("the engine's runtimes by name"),
	}
}

// capabilities is the document for one engine.
func capabilities(f facts) sdk.Capabilities {
	c := maps.Clone(staticCapabilities())
	decide := func(feature sdk.Feature, has bool, class sdk.Class, reason, not string) {
		g := c[feature]
		if has {
			g.Class, g.Reason = class, reason
		} else if g.Class == sdk.ClassUnsupported {
			g.Reason = not
		}
		c[feature] = g
	}
	const noGroups = "the engine says that it can't limit this (rootless without delegated control groups?)"
	decide(sdk.FeatureCPULimit, f.cpuLimit, sdk.ClassEnforced, "control groups", noGroups)
	decide(sdk.FeatureMemoryLimit, f.memoryLimit, sdk.ClassEnforced, "control groups; swap is none", noGroups)
	decide(sdk.FeaturePidsLimit, f.pidsLimit, sdk.ClassEnforced, "control groups", noGroups)
	decide(sdk.FeatureDiskLimit, quotas(f), sdk.ClassBestEffort, fmt.Sprintf("quotas of %s; volumes and tmpfs are beyond it", f.driver),
		fmt.Sprintf("the storage driver %s on %s has no quotas", f.driver, f.backing))
	decide(sdk.FeatureRuntime, len(f.runtimes) > 0, sdk.ClassEnforced, "the engine has "+strings.Join(slices.Sorted(maps.Keys(f.runtimes)), ", "), "the engine names no runtimes")
	decide(sdk.FeatureKernelIsolation, ownKernel(f.runtime), sdk.ClassEnforced, "the engine's default runtime is "+f.runtime, "")
	if f.podman {
		lessOnPodman(c)
	}
	return c
}

// lessOnPodman takes back what Podman does not do as Docker does (seen with
// 4.3.1).
func lessOnPodman(c sdk.Capabilities) {
	less := func(class sdk.Class, reason string, features ...sdk.Feature) {
		for _, feature := range features {
			c[feature] = sdk.Guarantee{Class: class, Reason: reason, DependsOnMachine: true}
		}
	}
	less(sdk.ClassBestEffort, "Podman loses the connection to a command now and then when it has many, and with it the command's output", sdk.FeatureExec, sdk.FeatureFiles)
	less(sdk.ClassUnsupported, "Podman's commit keeps none of the labels by which a snapshot is found",
		sdk.FeatureFilesystemSnapshot, sdk.FeatureSnapshotLeavesRunning, sdk.FeatureRestore, sdk.FeatureFork, sdk.FeaturePortableSnapshot)
	less(sdk.ClassUnsupported, "Podman's answer about a network without a gateway can't be read", sdk.FeaturePorts)
}

// quotas tells whether a storage driver can bound a container's own layer.
func quotas(f facts) bool {
	switch f.driver {
	case "btrfs", "zfs", "devicemapper":
		return true
	case "overlay2":
		return f.backing == "xfs"
	}
	return false
}

// ownKernel tells whether a runtime brings a kernel of its own.
func ownKernel(runtime string) bool {
	return runtime == "runsc" || runtime == "kata" || strings.HasPrefix(runtime, "kata-") || strings.HasPrefix(runtime, "io.containerd.kata") || strings.HasPrefix(runtime, "io.containerd.runsc")
}
