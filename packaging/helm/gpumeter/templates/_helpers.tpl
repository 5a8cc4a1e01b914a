{{- define "gpumeter.selector" -}}
app.kubernetes.io/name: gpumeter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpumeter.metadata" -}}
name: {{ .Release.Name }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "gpumeter.selector" . | nindent 2 }}
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
