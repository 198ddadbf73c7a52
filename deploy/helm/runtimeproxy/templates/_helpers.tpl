{{- /* The name of this release's objects. A pool of nodes is a release, so its name distinguishes pools. */ -}}
{{- define "runtimeproxy.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* The labels by which a DaemonSet finds its pods; the argument is (list . COMPONENT). */ -}}
{{- define "runtimeproxy.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "runtimeproxy.labels" -}}
{{ include "runtimeproxy.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end }}

{{- /*
The label of pods that no hook server is called for: the proxy's default. nodeInstaller.config cannot set another one:
pods and nodes do not change at the same moment, and an installer's pod with a label that its node does not know waits
for a hook server that may be away for the same reason.
*/ -}}
{{- define "runtimeproxy.skipLabel" -}}
runtimeproxy.koordinator.sh/skip-hookserver
{{- end }}

{{- define "runtimeproxy.image" -}}
{{ .repository }}@{{ .digest }}
{{- end }}

{{- /* What all pods have: where they run, and that the node keeps them. */ -}}
{{- define "runtimeproxy.pod" -}}
{{- $values := index . 0 -}}
{{- $part := index . 1 -}}
priorityClassName: system-node-critical
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
nodeSelector:
  {{- toYaml $part.nodeSelector | nindent 2 }}
tolerations:
  {{- toYaml $part.tolerations | nindent 2 }}
{{- end }}

{{- /*
What each of the project's hook servers needs: its hook points, and why its pod may do more than answer.
  cgroups: /sys/fs/cgroup of the node, "read" to find a container's processes, "write" to set what its answer cannot
  resctrl: /sys/fs/resctrl of the node, in which it makes groups and moves threads
  hostPID: it names processes by their numbers on the node
  SYS_PTRACE: prctl(PR_SCHED_CORE) requests it to give other processes a cookie
  unconfined: AppArmor's usual profile denies other processes, and /sys/fs/resctrl
  state: a directory of the node that outlives its container
*/ -}}
{{- define "runtimeproxy.hooks" -}}
batchresource: {points: [PreRunPodSandbox, PreCreateContainer, PreUpdateContainerResources], cgroups: write}
coresched: {points: [PostStartContainer, PostStopPodSandbox], cgroups: read, hostPID: true, capabilities: [SYS_PTRACE], unconfined: true, state: true}
cpunormalization: {points: [PreCreateContainer, PreUpdateContainerResources]}
cpuset: {points: [PreRunPodSandbox, PreCreateContainer, PreUpdateContainerResources], cgroups: write}
gpu: {points: [PreCreateContainer]}
groupidentity: {points: [PreRunPodSandbox], cgroups: write}
oomscoreadj: {points: [PreCreateContainer]}
rdt: {points: [PreRunPodSandbox, PreCreateContainer, PostStartContainer, PostStopPodSandbox], cgroups: read, hostPID: true, unconfined: true, resctrl: true}
{{- end }}
