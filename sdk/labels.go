// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"
)

// The label keys: the only portable mark of ownership. Every object that a
// backend holds for sandboxer carries them in the backend's own mechanism.
const (
	LabelPrefix          = "dev.sandboxer/"
	LabelID              = LabelPrefix + "id"
	LabelFleet           = LabelPrefix + "fleet"
	LabelIncarnation     = LabelPrefix + "incarnation"
	LabelOwner           = LabelPrefix + "owner"
	LabelTask            = LabelPrefix + "task"
	LabelRun             = LabelPrefix + "run"
	LabelActor           = LabelPrefix + "actor"
	LabelProfile         = LabelPrefix + "profile"
	LabelProfileRevision = LabelPrefix + "profile-revision"
	LabelCreatedAt       = LabelPrefix + "created-at"
	// LabelUser carries the user's own labels as one JSON object.
	LabelUser = LabelPrefix + "labels"
	// LabelPacked carries all of the above as one JSON object, for backends
	// where tags are scarce.
	LabelPacked = "dev.sandboxer"
)

// Identity says whose sandbox it is and what it was made for.
type Identity struct {
	ID              string            `json:"id"`
	Fleet           string            `json:"fleet"`
	Incarnation     int64             `json:"incarnation"`
	Owner           string            `json:"owner,omitempty"`
	Task            string            `json:"task,omitempty"`
	Run             string            `json:"run,omitempty"`
	Actor           string            `json:"actor,omitempty"`
	Profile         string            `json:"profile,omitempty"`
	ProfileRevision string            `json:"profile_revision,omitempty"`
	CreatedAt       time.Time         `json:"created_at"`
	Labels          map[string]string `json:"labels,omitempty"` // the user's own
}

// ToLabels returns the identity as labels. Empty fields have no label.
func (i Identity) ToLabels() map[string]string {
	labels := map[string]string{
		LabelID:          i.ID,
		LabelFleet:       i.Fleet,
		LabelIncarnation: strconv.FormatInt(i.Incarnation, 10),
		LabelCreatedAt:   i.CreatedAt.UTC().Format(time.RFC3339Nano),
	}
	for key, value := range map[string]string{
		LabelOwner: i.Owner, LabelTask: i.Task, LabelRun: i.Run, LabelActor: i.Actor,
		LabelProfile: i.Profile, LabelProfileRevision: i.ProfileRevision,
	} {
		if value != "" {
			labels[key] = value
		}
	}
	if len(i.Labels) > 0 {
		// A map of strings always encodes.
		user, _ := json.Marshal(i.Labels)
		labels[LabelUser] = string(user)
	}
	return labels
}

// Pack returns the identity as one label value.
func (i Identity) Pack() string {
	packed, _ := json.Marshal(i)
	return string(packed)
}

// IdentityFromLabels reads an identity from an object's labels, packed or
// not. An object without an id and a fleet is foreign: ok is false. Labels
// that are there but can't be read are an error, never a guess.
func IdentityFromLabels(labels map[string]string) (id Identity, ok bool, err error) {
	if packed, found := labels[LabelPacked]; found {
		if err := json.Unmarshal([]byte(packed), &id); err != nil {
			return Identity{}, false, fmt.Errorf("label %s: %w", LabelPacked, err)
		}
		return id, id.ID != "" && id.Fleet != "", nil
	}
	if labels[LabelID] == "" || labels[LabelFleet] == "" {
		return Identity{}, false, nil
	}
	id = Identity{
		ID: labels[LabelID], Fleet: labels[LabelFleet], Owner: labels[LabelOwner], Task: labels[LabelTask],
		Run: labels[LabelRun], Actor: labels[LabelActor], Profile: labels[LabelProfile],
		ProfileRevision: labels[LabelProfileRevision],
	}
	if id.Incarnation, err = strconv.ParseInt(labels[LabelIncarnation], 10, 64); err != nil {
		return Identity{}, false, fmt.Errorf("label %s: %w", LabelIncarnation, err)
	}
	if id.CreatedAt, err = time.Parse(time.RFC3339Nano, labels[LabelCreatedAt]); err != nil {
		return Identity{}, false, fmt.Errorf("label %s: %w", LabelCreatedAt, err)
	}
	if user := labels[LabelUser]; user != "" {
		if err := json.Unmarshal([]byte(user), &id.Labels); err != nil {
			return Identity{}, false, fmt.Errorf("label %s: %w", LabelUser, err)
		}
	}
	return id, true, nil
}

// Clone returns a copy that shares no map.
func (i Identity) Clone() Identity {
	i.Labels = maps.Clone(i.Labels)
	return i
}
