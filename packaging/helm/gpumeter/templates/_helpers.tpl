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
