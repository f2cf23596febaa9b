// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

// Class says how far a backend's word on a feature goes.
type Class string

// The guarantee classes, strongest first.
const (
	ClassEnforced     Class = "enforced"     // holds against a hostile workload
	ClassBestEffort   Class = "best_effort"  // holds in ordinary use; can be got round or can fail late
	ClassEmulated     Class = "emulated"     // done by sandboxer around the backend, not by it
	ClassUnverifiable Class = "unverifiable" // claimed by the backend; can't be seen from outside
	ClassUnsupported  Class = "unsupported"
)

// Satisfies reports whether a feature of class c is good enough where need
// is asked for. Enforced satisfies everything; best_effort and emulated
// satisfy themselves and each other's weaker askers; unverifiable satisfies
// only unverifiable; unsupported satisfies only unsupported.
func (c Class) Satisfies(need Class) bool { return c.rank() >= need.rank() }

// Valid reports whether c is one of the five classes.
func (c Class) Valid() bool {
	switch c {
	case ClassEnforced, ClassBestEffort, ClassEmulated, ClassUnverifiable, ClassUnsupported:
		return true
	}
	return false
}

func (c Class) rank() int {
	switch c {
	case ClassEnforced:
		return 4
	case ClassBestEffort:
		return 3
	case ClassEmulated:
		return 2
	case ClassUnverifiable:
		return 1
	}
	return 0
}

// Feature names one promise of the capability document.
type Feature string

// The features.
const (
	FeatureKernelIsolation       Feature = "kernel_isolation"
	FeatureCPULimit              Feature = "cpu_limit"
	FeatureMemoryLimit           Feature = "memory_limit"
	FeaturePidsLimit             Feature = "pids_limit"
	FeatureDiskLimit             Feature = "disk_limit"
	FeatureEgressNone            Feature = "egress_none"   // no network at all
	FeatureEgressDeny            Feature = "egress_deny"   // deny all but an allow-list
	FeatureEgressCIDR            Feature = "egress_cidr"   // allow-list by address
	FeatureEgressDomain          Feature = "egress_domain" // allow-list by name, DNS covered
	FeatureEgressOpen            Feature = "egress_open"
	FeatureSecretsOutside        Feature = "secrets_outside" // secret values never enter the sandbox
	FeatureSecretFiles           Feature = "secret_files"    // secrets as files on tmpfs
	FeatureDeadline              Feature = "deadline"
	FeatureExtend                Feature = "extend"
	FeatureExtendCAS             Feature = "extend_cas"
	FeatureClaim                 Feature = "claim"
	FeatureExpirySnapshot        Feature = "expiry_snapshot"
	FeatureExpiryPause           Feature = "expiry_pause"
	FeatureIdleTimeout           Feature = "idle_timeout"
	FeatureIdleExec              Feature = "idle_exec"      // a command that runs is activity
	FeatureIdleFiles             Feature = "idle_files"     // copying is activity
	FeatureIdlePorts             Feature = "idle_ports"     // traffic of a published port is activity
	FeatureIdleProcesses         Feature = "idle_processes" // work inside that nobody asked for from outside is activity
	FeatureIdempotentCreate      Feature = "idempotent_create"
	FeatureListComplete          Feature = "list_complete"
	FeatureFilesystemSnapshot    Feature = "filesystem_snapshot"
	FeatureMemorySnapshot        Feature = "memory_snapshot"
	FeatureSnapshotLeavesRunning Feature = "snapshot_leaves_running"
	FeatureRestore               Feature = "restore"
	FeatureFork                  Feature = "fork"
	FeaturePortableSnapshot      Feature = "portable_snapshot"
	FeaturePause                 Feature = "pause"
	FeatureExec                  Feature = "exec"
	FeatureFiles                 Feature = "files"
	FeaturePorts                 Feature = "ports"
	FeatureLogs                  Feature = "logs"
	FeatureNetworkLog            Feature = "network_log" // what the network policy refused; see LogNetwork
	FeatureCredentialIsolation   Feature = "credential_isolation"
	FeatureHostRoot              Feature = "host_root"   // a root filesystem without an image
	FeatureImageFile             Feature = "image_file"  // an image by path
	FeatureImagePull             Feature = "image_pull"  // an image by reference
	FeatureImageBuild            Feature = "image_build" // an image from a build context
	FeatureCompose               Feature = "compose"     // a Compose project
	FeatureMachine               Feature = "machine"     // a virtual machine image
	FeatureTemplate              Feature = "template"    // a template of the backend's own
	FeatureRuntime               Feature = "runtime"     // a runtime by name
)

// Features returns every feature in the order of the documentation.
func Features() []Feature {
	return []Feature{
		FeatureKernelIsolation, FeatureCPULimit, FeatureMemoryLimit, FeaturePidsLimit, FeatureDiskLimit,
		FeatureEgressNone, FeatureEgressDeny, FeatureEgressCIDR, FeatureEgressDomain, FeatureEgressOpen,
		FeatureSecretsOutside, FeatureSecretFiles,
		FeatureDeadline, FeatureExtend, FeatureExtendCAS, FeatureClaim, FeatureExpirySnapshot, FeatureExpiryPause,
		FeatureIdleTimeout, FeatureIdleExec, FeatureIdleFiles, FeatureIdlePorts, FeatureIdleProcesses,
		FeatureIdempotentCreate, FeatureListComplete,
		FeatureFilesystemSnapshot, FeatureMemorySnapshot, FeatureSnapshotLeavesRunning, FeatureRestore, FeatureFork,
		FeaturePortableSnapshot, FeaturePause, FeatureExec, FeatureFiles, FeaturePorts, FeatureLogs, FeatureNetworkLog,
		FeatureCredentialIsolation, FeatureHostRoot, FeatureImageFile, FeatureImagePull,
		FeatureImageBuild, FeatureCompose, FeatureMachine, FeatureTemplate, FeatureRuntime,
	}
}

// Guarantee is what a backend says about one feature.
type Guarantee struct {
	Class  Class  `json:"class"`
	Reason string `json:"reason,omitempty"` // one line: by what, or why not
	// DependsOnMachine marks a class that only a probe can decide; the
	// static document then carries the weakest class that it can have.
	DependsOnMachine bool `json:"depends_on_machine,omitempty"`
}

// Capabilities is a backend's capability document.
type Capabilities map[Feature]Guarantee

// Of returns the guarantee for a feature. What the document leaves out is
// unsupported.
func (c Capabilities) Of(f Feature) Guarantee {
	if g, ok := c[f]; ok {
		return g
	}
	return Guarantee{Class: ClassUnsupported, Reason: "not in the capability document"}
}
