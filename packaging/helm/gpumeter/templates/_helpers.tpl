{{- define "gpumeter.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The name of every object, as in charts that `helm create` makes. */}}
{{- define "gpumeter.fullname" -}}
{{- $name := include "gpumeter.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- .Values.fullnameOverride | default $full | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "gpumeter.selector" -}}
app.kubernetes.io/name: {{ include "gpumeter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpumeter.metadata" -}}
name: {{ include "gpumeter.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "gpumeter.selector" . | nindent 2 }}
{{- end }}

{{- /* The server of a fleet has labels of its own, so that nothing that selects agents selects it. */}}
{{- define "gpumeter.fleet.fullname" -}}
{{- include "gpumeter.fullname" . | trunc 57 | trimSuffix "-" }}-fleet
{{- end }}

{{- define "gpumeter.fleet.selector" -}}
app.kubernetes.io/name: {{ include "gpumeter.name" . | trunc 57 | trimSuffix "-" }}-fleet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpumeter.fleet.metadata" -}}
name: {{ include "gpumeter.fleet.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "gpumeter.fleet.selector" . | nindent 2 }}
{{- end }}

{{- /* The given values of the keys that the agent takes only when it starts; empty if there are none. */}}
{{- define "gpumeter.restart" -}}
{{- range $key := .Files.Lines "files/restart-keys.txt" }}
{{- $value := $.Values.config }}
{{- range splitList "." $key }}
{{- if kindIs "map" $value }}{{ $value = get $value . }}{{ else }}{{ $value = "" }}{{ end }}
{{- end }}
{{- if ne (toString $value) "" }}{{ printf "%s=%s\n" $key (toJson $value) }}{{ end }}
{{- end }}
{{- end }}
